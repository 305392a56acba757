"""ringmark report: a campaign as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a campaign as one HTML page that needs no network"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="a campaign's folder, or its name under results/")
    parser.add_argument("--out", type=Path, help="the file (report.html in the campaign's folder)")


def run(args: argparse.Namespace) -> int:
    from ringmark.record import write_atomic
    from ringmark.tables import campaign, collect, report

    found = campaign.find(args.campaign)
    target = args.out or found.folder / "report.html"
    page = report.html(collect.checked(found))
    write_atomic(target, page, durable=False)
    print(f"{target}: {len(page) / 1e6:.1f} MB, open it in a browser")
    return 0
