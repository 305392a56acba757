"""ringmark collect: a campaign's records as one tidy table."""

from __future__ import annotations

import argparse
from collections import Counter

HELP = "read every record of a campaign into one tidy table (cells.csv)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="a campaign's folder, or its name under results/")


def run(args: argparse.Namespace) -> int:
    from ringmark.tables import campaign, collect

    collected = collect.collect(campaign.find(args.campaign))
    counts = Counter(row.status for row in collected.rows)
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    for path in collect.write(collected):
        print(f"{path}: {len(collected.rows)} records ({words})")
    return 0
