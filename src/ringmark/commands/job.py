"""ringmark job: measure one job's cells, as the workflow does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ringmark import aside, record, supervise
from ringmark import job as jobs

HELP = "measure the cells of one job file (the workflow calls this; a rerun continues where it ended)"
INTERRUPTED = "what was finished is kept, the same command continues"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=Path, help="a job file written by 'ringmark plan'")
    parser.add_argument("--done", type=Path, help="write a list of the job's records here when all are there")


def run(args: argparse.Namespace) -> int:
    job = jobs.load(args.job)
    if args.done:
        supervise.check_writable(args.done.parent)
    if sentence := aside.told([job]):
        print(sentence)
    found = supervise.run(job, args.job)
    if args.done:
        listing = [{"record": item.out, "status": one.status.value} for item, one in zip(job.items, found)]
        record.write_atomic(args.done, json.dumps(listing, indent=1) + "\n")
    return 0
