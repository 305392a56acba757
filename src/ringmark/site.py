"""Where a world starts: this host, or the nodes of the Slurm allocation that we are in.

What launch.py decides purely, this file finds out: nodes, a free port, the image. It also ends the steps that
a world may leave behind, and says when the allocation itself is over, which is no cell's fault.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ringmark import image as images
from ringmark import launch
from ringmark.cluster import Cluster
from ringmark.errors import UserError
from ringmark.job import Job

ASK_S = 60.0
STEP_END_S = 60.0


class Site:
    """This host, or an allocation; made once for a supervisor."""

    def __init__(self, job: Job) -> None:
        self.job, self.cluster = job, job.cluster
        self.slurm_job = os.environ.get("SLURM_JOB_ID", "")
        self.hosts: tuple[str, ...] = ()
        if self.cluster is not None and self.cluster.scheduler == "slurm":
            if not self.slurm_job or shutil.which("srun") is None:
                raise UserError(
                    f"job {job.id} is for cluster {self.cluster.name}, and this is no Slurm allocation: "
                    "start it with 'snakemake --profile slurm', or inside salloc"
                )
            self.hosts = allocated(self.slurm_job)
            needed, _ = launch.geometry(job)
            if len(self.hosts) < needed:
                raise UserError(
                    f"mesh {job.mesh} needs {needed} nodes, the allocation has {len(self.hosts)}: "
                    "ask for more"
                )

    def command(self, job_file: Path, items: Sequence[int], run_id: str) -> launch.Command:
        image, image_id = image_of(self.cluster)
        place = launch.Place(
            hosts=self.hosts,
            port=free_port() if self.hosts else 0,
            folder=str(Path.cwd()),
            user=f"{os.getuid()}:{os.getgid()}",
            image=image,
            image_id=image_id,
        )
        return launch.world(self.job, str(job_file), items, run_id, place)

    def environ(self) -> dict[str, str]:
        return launch.inherited(os.environ, self.cluster)

    def over(self) -> str | None:
        """The allocation's state when it is not running any more: what ends now is not a cell's failure."""
        if not self.hosts:
            return None
        state = _ask("squeue", "-h", "-j", self.slurm_job, "-o", "%T").strip() or "unknown"
        return None if state == "RUNNING" else state

    def end_steps(self, run_id: str) -> None:
        """Make sure that no task and no container of a world is left on any node."""
        kill = launch.leftovers(self.job, run_id, launch.Place(self.hosts))
        if kill is not None:
            environ = self.environ()  # that none is left is no failure
            subprocess.run(kill, env=environ, check=False, capture_output=True)
        if not self.hosts:
            return
        deadline = time.monotonic() + STEP_END_S
        while step := self._step(run_id):
            if time.monotonic() > deadline:
                raise UserError(f"step {step} does not end: nodes {','.join(self.hosts)} need a look")
            subprocess.run(["scancel", "--signal=KILL", step], check=False, capture_output=True)
            time.sleep(0.5)

    def _step(self, run_id: str) -> str | None:
        lines = _ask("squeue", "-s", "-h", "-j", self.slurm_job, "-o", "%i %j").splitlines()
        steps = (line.split() for line in lines)
        return next((step[0] for step in steps if step[-1] == launch.step_name(run_id)), None)


def allocated(slurm_job: str) -> tuple[str, ...]:
    """The allocation's nodes. The environment does not tell: Snakemake's job step takes SLURM_* out of it."""
    names = _ask("squeue", "-h", "-j", slurm_job, "-o", "%N").strip()
    hosts = _ask("scontrol", "show", "hostnames", names).split() if names else []
    if not hosts:
        raise UserError(f"Slurm names no nodes of job {slurm_job}: is it still running?")
    return tuple(hosts)


def image_of(cluster: Cluster | None) -> tuple[str | None, str | None]:
    """The image to run and its id: the cluster file's own, or the one that `ringmark image` built."""
    if cluster is None or cluster.runtime == "bare":
        return None, None
    if cluster.image is not None:
        is_file = cluster.image.endswith((images.SIF, images.SQSH))  # pyxis takes a relative path for a name
        return str(Path(cluster.image).absolute()) if is_file else cluster.image, None
    built = images.read()
    return built.name, built.image_id


def free_port() -> int:
    """A port that nobody listens on here, outside the range that outgoing connections take theirs from."""
    for port in range(20000 + os.getpid() % 5000, 30000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise UserError("no port from 20000 to 29999 is free on this host")


def _ask(*argv: str) -> str:
    """What a Slurm command prints; a controller that is busy is asked again."""
    for patience in (1.0, 5.0, 15.0, 0.0):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S, check=False)
            if done.returncode == 0:
                return done.stdout
            said = done.stderr
        except subprocess.TimeoutExpired:
            said = f"no answer within {ASK_S:g} s"
        time.sleep(patience)
    raise UserError(f"'{' '.join(argv)}' failed: {' '.join(said.split())}")
