"""`ringmark audit`: do published numbers agree with each other, and with their own formula?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "hold published numbers against each other and against the FLOPs formula"
DEFAULT_FOLDER = Path("results/published")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help=f"claims (.csv) or logs and pages; none means {DEFAULT_FOLDER}/claims.csv",
    )
    parser.add_argument("--out", type=Path, metavar="PAGE", help="write the page there; else to the screen")
    parser.add_argument(
        "--check", action="store_true", help=f"fail where --out (default {DEFAULT_FOLDER}/audit.md) is stale"
    )


def run(args: argparse.Namespace) -> int:
    from ringmark.published.audit import audit, render
    from ringmark.published.claim import Claim, read_csv
    from ringmark.published.ingest import ingest_files
    from ringmark.record import write_atomic

    claims: list[Claim] = []
    files = args.files or [DEFAULT_FOLDER / "claims.csv"]
    for path in (each for each in files if each.suffix == ".csv"):
        claims += read_csv(path)
    claims += ingest_files([each for each in files if each.suffix != ".csv"]).claims
    page = render(audit(claims), claims)
    if args.check:
        target = args.out or DEFAULT_FOLDER / "audit.md"
        if target.is_file() and target.read_text(encoding="utf-8") == page:
            return 0
        print(f"ringmark: {target} is stale; run `ringmark audit --out {target}`", file=sys.stderr)
        return 1
    if args.out is None:
        sys.stdout.write(page)
    else:
        write_atomic(args.out, page)
    return 0
