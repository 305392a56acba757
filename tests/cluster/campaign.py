"""A checkout with a small campaign for the Slurm of these tests, and the driver that runs it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from slurm import Slurm, wait_for

from ringmark import record
from ringmark.bench import progress
from ringmark.record import Record

ROOT = Path(__file__).parents[2]
SHAPE = {"batch": 1, "num_heads_q": 4, "num_heads_kv": 4, "head_dim": 16, "dtype": "fp32", "mask": "causal"}
# Long enough to be caught in the middle: a cell is timed for STEADY_S unless it is told otherwise.
STEADY_S = 6.0


class Checkout:
    """What a user has on the login node: the workflow, a config, a cluster file, and room for results."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        self.folder, self.slurm = folder, slurm
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.variables: dict[str, str] = {}
        shutil.copy(ROOT / "Snakefile", folder)
        shutil.copytree(ROOT / "workflow", folder / "workflow")
        shutil.copytree(ROOT / "config", folder / "config")
        shutil.copytree(ROOT / "paper_tables/templates", folder / "paper_tables/templates")
        for link in ("slurm", "profiles"):
            (folder / link).symlink_to(os.readlink(ROOT / link))
        site = {"name": "onehost", "nodes": slurm.num_nodes, "gpus_per_node": slurm.gpus_per_node}
        site |= {"cpus_per_node": 8, "partition": "gpu", "fabric": "tcp"}
        (folder / "cluster.yaml").write_text(yaml.safe_dump(site))

    def write_config(self, methods: list[str], **changes: Any) -> None:
        """A campaign on 4 nodes x 2 GPUs; `changes` are keys of the config, of its grid, or of measure."""
        grid: dict[str, Any] = {
            "methods": methods,
            "seqlen_global": [256],
            "phases": ["fwd"],
            "shapes": [SHAPE],
        }
        measure = {"min_iterations": 3, "max_iterations": 100000, "ci_target": 1e-9, "time_limit_s": STEADY_S}
        config: dict[str, Any] = {
            "campaign": "test",
            "cluster": "cluster.yaml",
            "mesh": {"nodes": 4, "gpus": 2},
        }
        config |= {"cell_limit_s": 90.0, "start_limit_s": 200.0, "preflight": False}
        for name, value in changes.items():
            where = grid if name in grid else measure if name in measure else config
            where[name] = value
        config |= {"grids": [grid], "measure": measure}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Snakemake as the user calls it, but asking Slurm every 2 s and not every 40."""
        argv = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "config.yaml"]
        argv += [
            "--slurm-init-seconds-before-status-checks",
            "2",
            "--seconds-between-status-checks",
            "2",
            *words,
        ]
        with open(self.folder / "driver.log", "ab") as log:
            driver = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={**self.slurm.environ, **self.variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.drivers.append(driver)
        return driver

    def run(self, *words: str) -> None:
        """Snakemake to its end, which must be a good one."""
        driver = self.start(*words)
        driver.wait(300)
        assert driver.returncode == 0, self.log()

    def ringmark(self, *words: str) -> str:
        """The output of a command on the login node."""
        argv = [sys.executable, "-m", "ringmark.cli", *words]
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env=self.slurm.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")

    def all_records(self) -> list[Record]:
        return [record.read(path) for path in sorted(self.folder.glob("results/test/records/**/*.json"))]

    def records(self) -> dict[str, Record]:
        """Method -> record, where each method has one."""
        return {one.cell.method: one for one in self.all_records()}

    def rows(self) -> dict[str, Record]:
        """Table row (method with its options) -> record, where each row has one."""
        return {one.cell.row: one for one in self.all_records()}

    def statuses(self) -> dict[str, str]:
        return {method: found.status.value for method, found in self.records().items()}

    def worlds(self) -> list[Path]:
        """The folders that worlds have reported to."""
        return sorted(path.parent for path in self.folder.glob("results/test/jobs/*/*/log.txt"))

    def wait_for_stage(self, stage: str, *methods: str) -> tuple[str, dict[int, progress.Progress]]:
        """Wait until every rank of a world is at a stage of a cell of one of the methods."""
        seen: dict[str, Any] = {}

        def there() -> bool:
            worlds = self.worlds()
            if not worlds:
                return False
            job = json.loads(next(self.folder.glob("results/test/jobs/*.job.json")).read_text())
            ranks = progress.ranks(worlds[-1], 8)
            if len(ranks) < 8 or {at.stage for at in ranks.values()} != {stage}:
                return False
            items = {at.item for at in ranks.values()}
            method = job["items"][min(items)]["cell"]["method"]
            seen["found"] = method, ranks
            return len(items) == 1 and method in methods

        wait_for(there, f"stage {stage} of {methods}", 120, every=0.05)
        return seen["found"]

    def slurm_jobs(self) -> list[dict[str, str]]:
        """What Slurm says of the jobs that were submitted from this checkout."""
        shown = [self.slurm.show(job) for job in self.slurm.jobs()]
        return [one for one in shown if one.get("WorkDir") == str(self.folder)]

    def alive(self) -> list[int]:
        """Processes of ranks and agents that work for this checkout."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                ours = os.readlink(path / "cwd") == str(self.folder)
                if ours and any(
                    word in (b"ringmark.bench.agent", b"ringmark.bench.worker") for word in words
                ):
                    found.append(int(path.name))
        return found

    def close(self) -> None:
        """End what is left of a test: its drivers, and its jobs in Slurm."""
        for driver in self.drivers:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
        ids = [one["JobId"] for one in self.slurm_jobs() if one["JobState"] in ("PENDING", "RUNNING")]
        if ids:
            self.slurm.ask("scancel", *ids)
        wait_for(lambda: not self.alive(), "the ranks of a test to be gone", 60)
