"""ringmark plot: a campaign's plots, as SVG, PDF and PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "draw the plots of a campaign (SVG, PDF, PNG)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", help="a campaign's folder, or its name under results/")
    parser.add_argument("--out", type=Path, help="where plots go (paper_tables/)")
    parser.add_argument("--format", action="append", choices=("svg", "pdf", "png"), help="repeatable (all)")


def run(args: argparse.Namespace) -> int:
    from ringmark.record import write_atomic
    from ringmark.tables import campaign, collect, group, plot

    found = campaign.find(args.campaign)
    out = args.out or campaign.project_root(found, None) / "paper_tables"
    folder = out / found.name / "plots"
    count = 0
    for name, figure in plot.pictures(group.groups(collect.checked(found).rows)):
        for kind in args.format or plot.FORMATS:
            target = folder / f"{name}.{kind}"
            write_atomic(target, plot.save(figure, kind), durable=False)
            count += 1
    if not count:
        print(f"no cell of {found.name} passed: there is nothing to draw")
        return 1
    print(f"{count} files in {folder}")
    return 0
