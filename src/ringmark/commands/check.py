"""ringmark check: whether a campaign's records hold together."""

from __future__ import annotations

import argparse

HELP = "make every derived number of a campaign again from its samples, and hold it to the rules"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="a campaign's folder, or its name under results/")


def run(args: argparse.Namespace) -> int:
    from ringmark import campaign_check
    from ringmark.tables import campaign

    checked = campaign_check.check(campaign.find(args.campaign).folder)
    for finding in checked.findings:
        print(finding)
    if checked.problems:
        print(f"{len(checked.problems)} problems in {checked.records} records")
        return 1
    print(f"SUCCESS: {checked.records} records, every derived number made again from its samples")
    return 0
