"""ringmark agent: start one node's ranks (what a container whose entry point is ringmark is told to do)."""

from __future__ import annotations

import argparse

from ringmark.bench import agent

HELP = "start the ranks of one node (launchers call this inside containers)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    agent.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    agent.die_with_parent()
    return agent.run(args)
