"""What the Snakefile needs to know of a campaign: its files and its jobs. Logic lives here, not in rules."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ringmark import config as configs
from ringmark import job as jobs
from ringmark import schema
from ringmark.errors import UserError

RINGMARK = f"{sys.executable} -m ringmark.cli"
DEFAULT_CONFIG = Path("config/local.yaml")
RESULTS = Path("results")
TABLES = Path("paper_tables")
TEMPLATES = sorted(str(path) for path in Path("paper_tables/templates").glob("**/*.j2"))


@dataclass(frozen=True)
class Campaign:
    """A campaign as the workflow sees it."""

    config: configs.Config
    jobs: list[jobs.Job]

    @classmethod
    def from_snakemake(cls, given: dict[str, Any]) -> Campaign:
        """The campaign of --configfile; without one config/local.yaml, with what --config overrides."""
        try:
            config = configs.from_data(with_default(given), "config")
            campaign = cls(config, configs.jobs(config, RESULTS))
            campaign.forget_false_manifests()
            return campaign
        except UserError as error:
            raise SystemExit(f"ringmark: {error}") from None

    @property
    def folder(self) -> str:
        return str(RESULTS / self.config.campaign)

    @property
    def plan(self) -> str:
        return f"{self.folder}/campaign.json"

    @property
    def as_json(self) -> str:
        return json.dumps(schema.dump(self.config), sort_keys=True)

    @property
    def job_files(self) -> list[str]:
        return [f"{self.folder}/jobs/{job.id}.job.json" for job in self.jobs]

    @property
    def manifests(self) -> list[str]:
        return [f"{self.folder}/jobs/{job.id}.done.json" for job in self.jobs]

    @property
    def cells_csv(self) -> str:
        return f"{self.folder}/cells.csv"

    @property
    def table(self) -> str:
        return str(TABLES / f"{self.config.campaign}.md")

    def forget_false_manifests(self) -> None:
        """Remove a list that names records which are no longer there, so that the job runs again."""
        for job, manifest in zip(self.jobs, map(Path, self.manifests), strict=True):
            if manifest.exists() and job.pending():
                manifest.unlink()


def with_default(given: dict[str, Any]) -> dict[str, Any]:
    """`given` if it is a whole config; else the default config with `given` laid over it."""
    if "campaign" in given:
        return given
    return {**yaml.safe_load(DEFAULT_CONFIG.read_text(encoding="utf-8")), **given}
