"""ringmark cells: what a config would measure, and what it would cost."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from ringmark import config as configs
from ringmark import cost, launch, submit
from ringmark.arguments import positive

HELP = "list the cells of a config with an estimated cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="a config file, like config/local.yaml")
    parser.add_argument("--cluster", metavar="FILE", help="what Slurm would be asked for there")
    parser.add_argument(
        "--tflops", type=positive, help="expected TFLOP/s per GPU (without it: by the config's device)"
    )


def run(args: argparse.Namespace) -> int:
    config = configs.read(args.config)
    if args.cluster is not None:
        config = dataclasses.replace(config, cluster=args.cluster)
    for note in configs.unread(config):
        print(note, file=sys.stderr)
    rate = args.tflops or cost.assumed_tflops(config)
    total = 0.0
    print(f"{'cell':<90} {'about':>9}")
    for cell in configs.cells(config):
        seconds = cost.cell_seconds(cell, config.measure, rate)
        total += seconds
        print(f"{cell.key:<90} {seconds:>7.1f} s")
    jobs = configs.jobs(config, Path("results"))
    total = total * config.repeats + len(jobs) * cost.START_S
    count = len(configs.cells(config)) * config.repeats
    nodes, _ = launch.geometry(jobs[0])  # those that it takes: a mesh may be a view of one host
    print(
        f"{count} cells ({config.repeats} repeat{'s' * (config.repeats > 1)}) in {len(jobs)} jobs: about "
        f"{total / 60:.1f} min, {total / 60 * nodes:.1f} node-minutes, at {rate:g} TFLOP/s per GPU"
    )
    if config.cluster is not None:
        print("\n".join(submit.summary(jobs, config, rate)))
    return 0
