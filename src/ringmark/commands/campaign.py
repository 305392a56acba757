"""ringmark campaign: a whole campaign on this host without a workflow engine."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from ringmark import config as configs
from ringmark import supervise
from ringmark.commands import plan

HELP = "measure a whole campaign on this host, job after job (for hosts without Snakemake)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="a config file, like config/h200x8.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where campaigns live")


def run(args: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    for job, path in plan.write(configs.read(args.config), args.results):
        counts.update(found.status.value for found in supervise.run(job, path))
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return 0
