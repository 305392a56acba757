"""A fabric: the variables that a kind of network wants from NCCL, each with its reason, as a small file.

    NCCL_IB_DISABLE=1  # why

The files are in envs/fabric/ (which is this package's data/fabric/), or wherever a cluster file says.
"""

from __future__ import annotations

import re
from pathlib import Path

from ringmark.errors import UserError, nearest

FOLDER = Path(__file__).parent / "data" / "fabric"
VIRTUAL = "virtual"  # the fabric of nodes that are only a view of one machine
NAME = "RINGMARK_FABRIC"  # tells the ranks, and so the records, which fabric it was
_LINE = re.compile(r'([A-Z][A-Z0-9_]*)=(?:"([^"]*)"|([^\s"#]*))\s+# (\S.*)')


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.env"))


def variables(fabric: str | None) -> dict[str, str]:
    """The variables of a fabric and its name, which records keep: one by name, one as a file, or none."""
    if fabric is None:
        return {}
    path = Path(fabric) if "/" in fabric or fabric.endswith(".env") else FOLDER / f"{fabric}.env"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        known = nearest(fabric, names())
        raise UserError(f"there is no fabric {fabric!r}: {known}; or name a file NAME.env") from None
    return {NAME: path.stem, **parse(text, str(path))}


def parse(text: str, where: str) -> dict[str, str]:
    """The variables in a file's text; each line must say why."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise UserError(f"{where} line {number} must read NAME=value  # why it is set: correct it")
        found[match[1]] = match[3] if match[2] is None else match[2]
    return found
