"""`ringmark ingest`: other tools' logs and pages in, claims out, every line accounted for."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

HELP = "read benchmark logs and pages of other tools into claims (CSV and JSON)"
DEFAULT_FOLDER = Path("results/published")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a log or page")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write DIR/claims.csv and DIR/claims.json; else CSV to the screen",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"compare with the claims in --out (default {DEFAULT_FOLDER}); write nothing",
    )


def run(args: argparse.Namespace) -> int:
    from ringmark.published import claim
    from ringmark.published.ingest import ingest_files

    found = ingest_files(args.files)
    texts = {
        "claims.csv": claim.to_csv(found.claims),
        "claims.json": claim.to_json(found.claims, found.skipped),
    }
    counts = Counter(each.source_file for each in found.claims)
    for path in args.files:
        print(f"{path.name}: {counts[path.name]} claims", file=sys.stderr)
    for skip in found.skipped:
        print(f"{skip.source_file}:{skip.source_line}: not read: {skip.reason}", file=sys.stderr)
    if args.check:
        return _check(texts, args.out or DEFAULT_FOLDER)
    if args.out is None:
        sys.stdout.write(texts["claims.csv"])
        return 0
    from ringmark.record import write_atomic

    for name, text in texts.items():
        write_atomic(args.out / name, text)
    return 0


def _check(texts: dict[str, str], folder: Path) -> int:
    """1 where a committed file differs from what the logs say now."""
    stale = []
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path))
    for name in stale:
        print(
            f"ringmark: {name} differs from its sources; run `ringmark ingest --out {folder} FILE...`",
            file=sys.stderr,
        )
    return 1 if stale else 0
