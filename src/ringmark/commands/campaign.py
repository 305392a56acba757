"""ringmark campaign: a campaign, or a part of it, on this host without a workflow engine."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

from ringmark import config as configs
from ringmark import host, supervise
from ringmark import job as jobs
from ringmark.arguments import index
from ringmark.commands import plan
from ringmark.errors import UserError
from ringmark.record import Status
from ringmark.site import Site

HELP = "measure a campaign on this host, job after job (for hosts without Snakemake)"
INTERRUPTED = "what was finished is kept, the same command continues"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="a config file, like config/h200x8.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where campaigns live")
    parser.add_argument(
        "--match",
        metavar="REGEX",
        help="only cells whose key matches, like '/S131072_fwd_bwd$' (one run for all)",
    )
    parser.add_argument("--repeat", type=index, help="only this repeat, counted from 0")
    parser.add_argument(
        "--again",
        action="store_true",
        help="first move aside what was asked for otherwise, or measured by another state of ringmark",
    )


def run(args: argparse.Namespace) -> int:
    config = configs.read(args.config)
    if args.repeat is not None and args.repeat >= config.repeats:
        raise UserError(f"there is no repeat {args.repeat}: the config has {config.repeats}, counted from 0")
    wanted = configs.jobs(config, args.results)
    check_place(wanted[0])
    whole = args.match is None and args.repeat is None
    part = None if whole else matching(wanted, args.match or "", args.repeat, args.results / config.campaign)
    jobs_folder = args.results / config.campaign / "jobs"
    supervise.check_writable(jobs_folder)
    counts: Counter[str] = Counter()
    with supervise.only_one(jobs_folder, f"campaign {config.campaign}"):
        planned = plan.write(config, args.results, wanted, args.again, part)
        if part is not None:
            path = Path(f"{part.folder}.job.json")
            jobs.save(part, path)
            planned = [(part, path)]
        for job, path in planned:
            counts.update(found.status.value for found in supervise.run(job, path))
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return 0 if counts[Status.PASSED.value] else 1


def check_place(job: jobs.Job) -> None:
    """Say at once, before anything is written, that a campaign's jobs cannot run here."""
    site = Site(job)  # an allocation of the size that is needed, where the cluster has a scheduler
    if not site.hosts and (job.cluster is None or job.cluster.runtime == "bare"):
        host.check_fits(job.mesh, host.gpus_for(job.device))


def matching(wanted: list[jobs.Job], pattern: str, repeat: int | None, folder: Path) -> jobs.Job:
    """One job of all cells that match, so that they share a run."""
    try:
        matches = re.compile(pattern).search
    except re.error as error:
        raise UserError(f"--match {pattern!r} is no regular expression: {error}") from None
    items = [item for job in wanted for item in job.items if matches(item.cell.key)]
    items = [item for item in items if repeat in (None, item.asked.repeat)]
    if not items:
        raise UserError(f"nothing matches {pattern!r}: 'ringmark cells' lists the keys of a config's cells")
    return jobs.part(wanted[0], f"part-{jobs.digest(items)}", items, folder / "jobs")
