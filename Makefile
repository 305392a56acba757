# ringmark: two commands do all the set-up.
#   make reproduce   the local campaign, CPU only, through the real workflow, to a rendered table
#   make test        the tests
# Each makes the environment it needs and nothing else; a second run re-uses it.

PYTHON ?= python3
# The CPU tests and the local campaign were run with this build; any torch >= 2.4 works.
TORCH ?= torch==2.13.0
CORES ?= 1
VENV := .venv
TABLES_VENV := .venv-tables
BIN := $(VENV)/bin
PIP := -m pip install -qq --disable-pip-version-check
# A venv that exists is enough for the tables too.
TABLES_PYTHON = $(if $(wildcard $(BIN)/ringmark),$(BIN)/python,$(TABLES_VENV)/bin/python)

.PHONY: FORCE help env env-dev env-tables reproduce tables test test-cluster test-image test-paper test-browser test-gpu lint clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'make tables      re-render the committed tables from the committed records (no torch)'
	@echo 'make lint        style, types, layer contracts, workflow'
	@echo 'make test-cluster, test-image, test-paper, test-browser, test-gpu: the tests that need more than Python'

# A torch that is named is installed, also into an environment that is there already.
ifneq ($(origin TORCH),file)
$(VENV)/.made: FORCE
endif
FORCE:

env: $(VENV)/.made
$(VENV)/.made: envs/local.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'ringmark: the workflow needs Python 3.11 or newer: set PYTHON=/path/to/python3.11'; exit 2; }
	@echo 'making the environment in $(VENV) (about a minute)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) '$(TORCH)'
	@$(BIN)/python $(PIP) -r envs/local.lock
	@$(BIN)/python $(PIP) --no-deps -e .
	@touch $@

env-dev: $(VENV)/.made-dev
$(VENV)/.made-dev: $(VENV)/.made envs/dev.lock
	@$(BIN)/python $(PIP) -r envs/dev.lock
	@touch $@

env-tables:
	@test -x $(BIN)/ringmark || $(MAKE) --no-print-directory $(TABLES_VENV)/.made
$(TABLES_VENV)/.made: envs/tables.lock pyproject.toml
	@test -x $(TABLES_VENV)/bin/python || $(PYTHON) -m venv $(TABLES_VENV)
	@$(TABLES_VENV)/bin/python $(PIP) -r envs/tables.lock
	@$(TABLES_VENV)/bin/python $(PIP) --no-deps -e .
	@touch $@

reproduce: env
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --profile workflow/profiles/local --quiet rules || \
	  { status=$$?; test -z "$$(ls .snakemake/locks 2>/dev/null)" || echo 'ringmark: a Snakemake locks this folder;' \
	  'if it was killed, run $(BIN)/snakemake --unlock, then make reproduce again: it goes on' >&2; exit $$status; }
	@echo; cat paper_tables/local.md; echo; echo 'The table is paper_tables/local.md, the same as a page results/local/report.html, its records under results/local/.'

tables: env-tables
	@$(TABLES_PYTHON) -m ringmark.cli render --all

test: env-dev
	@$(BIN)/python -m pytest

test-cluster: env-dev
	@$(BIN)/python -m pytest tests/cluster

test-image: env-dev
	@$(BIN)/python -m pytest tests/image

test-paper: env-dev
	@$(BIN)/python -m pytest tests/paper

test-browser: env-dev
	@$(BIN)/python -m pytest tests/browser

test-gpu:
	@$(PYTHON) -m pytest tests/gpu tests/test_triton.py

lint: env-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy src/ringmark
	@$(BIN)/lint-imports
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/hadolint Dockerfile

clean:
	rm -rf results/local paper_tables/local.* .snakemake
