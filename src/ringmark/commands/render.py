"""ringmark render: the tables of campaigns, from their records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ringmark.errors import UserError

if TYPE_CHECKING:
    from ringmark.tables.render import Renderer

HELP = "render the tables of a campaign (or of all) from its records"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", nargs="?", help="a campaign's folder, or its name under results/")
    parser.add_argument("--all", action="store_true", help="every campaign under results/")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    parser.add_argument("--out", type=Path, help="where tables go (paper_tables/)")
    parser.add_argument("--templates", type=Path, help="the templates (paper_tables/templates/)")


def run(args: argparse.Namespace) -> int:
    from ringmark.tables import render

    if (args.campaign is None) != args.all:
        raise UserError("name one campaign, or give --all")
    renderer = rendered(args)
    whole = args.all and args.out is None
    files, left_over = renderer.files, renderer.left_over(whole=whole)
    for path in left_over:
        print(f"left over: {shown(path)}: no record makes it, delete it")
    if args.check:
        stale, missing = render.stale(files), renderer.missing_blocks() if whole else []
        for path in stale:
            print(f"stale: {shown(path)}")
        for name in missing:
            print(f"missing: the block {name}: no Markdown file has its two marks (docs/tables.md)")
        print(f"{len(files)} files, {len(stale)} stale, {len(left_over)} left over")
        return 1 if stale or left_over or missing else 0
    written = render.write(files)
    for path in files:
        if path.suffix == ".md" and path.name != "forms.md":
            print(shown(path))
    print(f"{len(files)} files, {len(written)} written, the others were up to date")
    return 0


def rendered(args: argparse.Namespace) -> Renderer:
    """Everything that was asked for, in memory."""
    from ringmark.tables import campaign, render

    results = Path("results")
    asked = campaign.every(results) if args.all else [campaign.find(args.campaign, results)]
    root = campaign.project_root(asked[0] if asked else None, args.templates)
    out = args.out or root / "paper_tables"
    renderer = render.Renderer(root, out, args.templates or root / "paper_tables" / "templates")
    renderer.recorded.update(one.name for one in campaign.every(results))
    for one in asked:
        renderer.campaign(one)
    if args.all and (results / "published" / "claims.csv").exists():
        renderer.published(results / "published" / "claims.csv")
    if args.out is None:  # a rehearsal elsewhere leaves the project's own pages alone
        renderer.blocks(whole=args.all)
    return renderer


def shown(path: Path) -> str:
    """A path as a person in the working directory writes it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
