"""What Slurm is asked for one job of a campaign: nodes, time, and the words of the cluster file. Pure.

The names are the resources of Snakemake's Slurm plugin. One launcher a node and all GPUs of each come from
`nodes`, as many `tasks`, and --gpus-per-node among the extra words: its own `gpu` or `gres` beside `tasks`
would ask for tasks per GPU. `mpi` means that the job's command calls srun itself; the plugin refuses it for a
single task, and there the supervisor's srun overlaps with the plugin's.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ringmark import cost, launch
from ringmark.cluster import Cluster
from ringmark.config import Config
from ringmark.errors import UserError
from ringmark.job import Job

# What is assumed is no limit: a slower kernel or a busy file system must not cost a job its last cells.
SLOWER = 2.0


def resources(job: Job) -> dict[str, Any]:
    """The resources of one job, without its time limit."""
    site = job.cluster
    if site is None or site.scheduler != "slurm":
        return {}
    nodes, ranks = launch.geometry(job)
    found: dict[str, Any] = {
        "nodes": nodes,
        "tasks": nodes,
        "cpus_per_task": site.cpus_per_node,
        "mem_mb": site.mem_mb or 0,  # 0: the plugin says nothing of memory, instead of what it would guess
        "slurm_extra": " ".join(map(unmistakable, extra_words(job, site, ranks))),
    }
    if nodes > 1:
        found["mpi"] = "srun"
    named = {"slurm_partition": site.partition, "slurm_account": site.account}
    named |= {"qos": site.qos, "constraint": site.constraint}
    return found | {name: value for name, value in named.items() if value is not None}


def extra_words(job: Job, site: Cluster, ranks: int) -> list[str]:
    """The words for sbatch that the plugin has no resource for."""
    words = ["--ntasks-per-node=1"]
    if launch.asks_for_gpus(job, site):
        words.append(f"--gpus-per-node={ranks}")
    if site.exclusive:
        words.append("--exclusive")
    if site.reservation:
        words.append(f"--reservation={site.reservation}")
    return [*words, *site.sbatch_extra]


def unmistakable(word: str) -> str:
    """A word for the shell, quoted so that the plugin finds no option inside it.

    It refuses options that are its own, and looks for them anywhere: -J in a reservation ML-JULY. Two quotes
    behind the hyphen part them, and the shell takes them away. What begins a word stays as it is.
    """
    quoted = shlex.quote(word)
    begin = 2 if quoted.startswith("'") else 1
    return quoted[:begin] + re.sub(r"-(?=J|[A-Za-z](\s|$))", "-''", quoted[begin:])


def seconds(job: Job, config: Config, tflops: float | None = None) -> float:
    """About how long a job takes at a rate per rank, or at the one assumed of the config's device."""
    rate = tflops or cost.assumed_tflops(config)
    return cost.START_S + sum(cost.cell_seconds(item.cell, config.measure, rate) for item in job.items)


def minutes(job: Job, config: Config) -> int:
    """The time limit of a job: the most it takes, and room for one start and one cell that hang."""
    rate = cost.assumed_tflops(config)
    most = (cost.longest_seconds(item.cell, config.measure, rate, SLOWER) for item in job.items)
    limit = SLOWER * cost.START_S + sum(min(one, job.cell_limit_s) for one in most)
    limit += job.start_limit_s + job.cell_limit_s
    site = job.cluster
    return min(math.ceil(limit / 60), site.time_limit_min if site is not None else math.ceil(limit / 60))


def sbatch_line(job: Job, config: Config) -> str:
    """The sbatch command of one job, in the very words of Snakemake's plugin."""
    try:
        from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    except ImportError:
        raise UserError("Snakemake's Slurm plugin is not installed: 'make env' does it") from None
    asked = Resources(resources(job) | {"runtime": minutes(job, config)})
    site = job.cluster
    words = {
        "run_uuid": "ID-OF-THE-RUN",
        "slurm_logfile": f".snakemake/slurm_logs/rule_measure/{job.id}/%j.log",
        "comment_str": comment(job.id),
        "account": f" -A {shlex.quote(site.account)}" if site is not None and site.account else "",
        "partition": f" -p {shlex.quote(site.partition)}" if site is not None and site.partition else "",
        "workdir": ".",
    }
    # As the profile sets them; what the cluster file says comes as resources.
    settings = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None)
    line: str = get_submit_command(SimpleNamespace(resources=asked, threads=1), words, settings)
    return " ".join(line.split()) + " --wrap '...'"


def srun_line(job: Job) -> str:
    """The srun command with which the supervisor starts the ranks of a job."""
    nodes, _ = launch.geometry(job)
    hosts = tuple(f"NODE{index}" for index in range(nodes))
    site = job.cluster
    image = site.image if site is not None else None
    place = launch.Place(hosts, port=20000, folder="CHECKOUT", user="UID:GID", image=image or "IMAGE")
    return str(launch.world(job, f"{job.folder}.job.json", range(len(job.items)), "RUN", place))


def comment(job_id: str) -> str:
    """How Snakemake's plugin marks a job of the rule measure in Slurm."""
    return f"rule_measure_wildcards_{job_id}"


class Resources(dict[str, Any]):
    """Resources as the plugin reads them: by key and by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def summary(jobs: list[Job], config: Config, tflops: float | None = None) -> list[str]:
    """What a campaign will still do on its cluster: cells, node-minutes, and the commands of one job."""
    left = [replace(job, items=[job.items[index] for index in job.pending()]) for job in jobs]
    pending = [job for job in left if job.items]
    nodes = max((launch.geometry(job)[0] for job in jobs), default=1)
    rate = tflops or cost.assumed_tflops(config)
    spent = sum(seconds(job, config, rate) for job in pending) / 60
    cells, everything = (sum(len(job.items) for job in group) for group in (pending, jobs))
    there = f" ({everything - cells} have their record)" if cells < everything else ""
    lines = [
        f"{config.campaign}: {cells} cells to measure{there} in {len(pending)} jobs of {nodes} nodes: about "
        f"{spent:.1f} min, {spent * nodes:.1f} node-minutes, at {rate:g} TFLOP/s per rank"
    ]
    if pending and pending[0].cluster is not None and pending[0].cluster.scheduler == "slurm":
        lines += [f"one job:   {sbatch_line(pending[0], config)}"]
        lines += [f"its ranks: {srun_line(pending[0])}"]
    return lines
