"""What the Snakefile needs to know of a campaign: its files and its jobs. Logic lives here, not in rules."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringmark import aside, image, orphans, schema, submit, yamlfile
from ringmark import config as configs
from ringmark import job as jobs
from ringmark.cluster import Cluster
from ringmark.errors import UserError

RINGMARK = shlex.join([sys.executable, "-m", "ringmark.cli"])
DEFAULT_CONFIG = Path("config/local.yaml")
RESULTS = Path("results")
TABLES = Path("paper_tables")
SNAKEMAKE_LOCKS = Path(".snakemake/locks")
TEMPLATES = sorted(str(path) for path in Path("paper_tables/templates").glob("**/*.j2"))


@dataclass(frozen=True)
class Campaign:
    """A campaign as the workflow sees it."""

    config: configs.Config
    jobs: list[jobs.Job]

    @classmethod
    def from_snakemake(cls, given: dict[str, Any], configfiles: Iterable[str | Path] = ()) -> Campaign:
        """The campaign of --configfile; without one config/local.yaml, with what --config overrides."""
        try:
            config = configs.from_data(with_default(given, configfiles), "config")
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
    def cluster(self) -> Cluster | None:
        """The cluster of the campaign; every job has the same."""
        return self.jobs[0].cluster

    @property
    def cluster_as_json(self) -> str:
        """What of the cluster file the jobs carry: they are planned again when it changes."""
        return json.dumps(schema.dump(self.cluster), sort_keys=True)

    @property
    def runtime(self) -> str:
        return "bare" if self.cluster is None else self.cluster.runtime

    @property
    def image_inputs(self) -> list[str]:
        """The image, where ranks run in one that is built here."""
        built = self.cluster is not None and self.runtime != "bare" and self.cluster.image is None
        return [str(image.RESULT)] if built else []

    @property
    def resources(self) -> dict[str, Any]:
        """What every job asks of Slurm; nothing without a cluster."""
        return submit.resources(self.jobs[0])

    def minutes(self, job_id: str) -> int:
        """The time limit of one job."""
        return submit.minutes(next(job for job in self.jobs if job.id == job_id), self.config)

    def check(self) -> None:
        """Before anything is planned: no record would be replaced; old code is told."""
        try:
            aside.check(self.config.campaign, [item for job in self.jobs for item in job.items])
            sentence = aside.told(self.jobs)
        except UserError as error:
            raise SystemExit(f"ringmark: {error}") from None
        if sentence:  # jobs that have all their records are not started, and could not say it
            print(f"ringmark: {sentence}", file=sys.stderr)

    def announce(self) -> None:
        """Say what a campaign on a cluster will do: cells, node-minutes, the commands of one job."""
        if self.cluster is not None:
            for line in submit.summary(self.jobs, self.config):
                print(f"ringmark: {line}", file=sys.stderr)

    def before_submitting(self) -> None:
        """What must hold before a job is submitted: a cluster is named, and no earlier run is still at it."""
        if self.cluster is None:
            raise UserError("no cluster is named: set 'cluster: envs/clusters/YOURS.yaml' in the config")
        orphans.settle([job.id for job in self.jobs], Path.cwd(), lambda line: print(line, file=sys.stderr))

    def before_measuring_here(self) -> None:
        """No earlier run is still at it; where Snakemake holds a lock it says so itself, and at once."""
        if not any(SNAKEMAKE_LOCKS.glob("*")):
            orphans.settle_here(Path(self.folder, "jobs"), lambda line: print(line, file=sys.stderr))

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
    def page(self) -> str:
        """The campaign as one HTML page."""
        return f"{self.folder}/report.html"

    @property
    def table(self) -> str:
        return str(TABLES / f"{self.config.campaign}.md")

    def forget_false_manifests(self) -> None:
        """Remove a list that names records which are no longer there, so that the job runs again."""
        for job, manifest in zip(self.jobs, map(Path, self.manifests), strict=True):
            if manifest.exists() and job.pending():
                manifest.unlink()


_ready: set[str] = set()


def before_starting(campaign: Campaign, workflow: Any) -> None:
    """Check once, in the process that starts jobs, and only when some will be started."""
    executor = workflow.executor_plugin
    if executor is None or not workflow.is_main_process or campaign.folder in _ready:
        return
    how = executor.common_settings
    try:
        if not how.local_exec:
            campaign.before_submitting()
        elif not (how.dryrun_exec or how.touch_exec):
            campaign.before_measuring_here()
    except UserError as error:
        raise SystemExit(f"ringmark: {error}") from None
    _ready.add(campaign.folder)


def folder_of(path: str) -> str:
    """The folder that a file lies in."""
    return str(Path(path).parent)


def with_default(given: dict[str, Any], configfiles: Iterable[str | Path]) -> dict[str, Any]:
    """What the config files say, with --config laid over it; without a file, the default config below that.

    `given` is what Snakemake made of both: which of its keys come from a file it does not tell.
    """
    files = list(map(Path, configfiles))
    for path in files:  # Snakemake has read them in its own way, and took the last of two keys
        if path.suffix in (".yaml", ".yml"):
            yamlfile.read(path, "config")
    return given if files else overlaid(yamlfile.read(DEFAULT_CONFIG, "config"), given)


def overlaid(below: Any, above: Any) -> Any:
    """Plain data with other data laid over it: of mappings in both only the keys given above change."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: overlaid(below.get(key), value) for key, value in above.items()}}
