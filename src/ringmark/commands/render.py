"""ringmark render: the tables of campaigns, from their records."""

from __future__ import annotations

import argparse
from pathlib import Path

from ringmark.errors import UserError

HELP = "render the tables of a campaign (or of all) from its records"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", nargs="?", help="a campaign's folder, or its name under results/")
    parser.add_argument("--all", action="store_true", help="every campaign under results/")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    parser.add_argument("--out", type=Path, help="where tables go (paper_tables/)")
    parser.add_argument("--templates", type=Path, help="the templates (paper_tables/templates/)")


def run(args: argparse.Namespace) -> int:
    from ringmark.tables import campaign, render

    if (args.campaign is None) != args.all:
        raise UserError("name one campaign, or give --all")
    asked = campaign.every() if args.all else [campaign.find(args.campaign)]
    files: render.Files = {}
    for one in asked:
        root = None if args.out and args.templates else campaign.project_root(one)
        out = args.out or (root or Path()) / "paper_tables"
        render.refuse_unchecked(one)
        files.update(
            render.campaign_files(one, out, args.templates or (root or Path()) / "paper_tables/templates")
        )
    if args.check:
        stale = render.stale(files)
        for path in stale:
            print(f"stale: {shown(path)}")
        print(f"{len(files)} files, {len(stale)} stale")
        return 1 if stale else 0
    written = render.write(files)
    pages = [path for path in files if path.suffix == ".md"]
    for path in pages:
        print(shown(path))
    print(f"{len(files)} files, {len(written)} written, the others were up to date")
    return 0


def shown(path: Path) -> str:
    """A path as a person in the working directory writes it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
