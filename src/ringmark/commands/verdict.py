"""`ringmark verdict`: every published number held against a campaign's records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "hold published claims against a campaign's records"
DEFAULT_FOLDER = Path("results/published")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="a campaign's folder, or its name under results/")
    parser.add_argument("--claims", type=Path, default=DEFAULT_FOLDER / "claims.csv", metavar="CSV")
    parser.add_argument("--tolerances", type=Path, default=DEFAULT_FOLDER / "tolerances.yaml", metavar="YAML")
    parser.add_argument("--device", metavar="NAME", help="the hardware of claims whose source names none")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write DIR/verdicts.csv and DIR/verdicts.md; else the page"
    )


def run(args: argparse.Namespace) -> int:
    from ringmark.published.claim import read_csv
    from ringmark.published.measured import read_campaign
    from ringmark.published.tolerance import read_tolerances
    from ringmark.published.verdict import verdicts
    from ringmark.published.verdict_page import to_csv, to_markdown
    from ringmark.record import write_atomic
    from ringmark.tables import campaign

    claims, tolerances = read_csv(args.claims), read_tolerances(args.tolerances)
    asked = campaign.find(args.campaign)
    found = verdicts(claims, read_campaign(asked.folder), tolerances, args.device)
    page = to_markdown(found, asked.name)
    if args.out is None:
        sys.stdout.write(page)
        return 0
    write_atomic(args.out / "verdicts.csv", to_csv(found))
    write_atomic(args.out / "verdicts.md", page)
    return 0
