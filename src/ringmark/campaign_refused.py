"""A campaign that its check does not let pass: no table, verdict or plot is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ringmark.campaign_finding import Finding
from ringmark.errors import UserError


def refuse(folder: Path, problems: Sequence[Finding]) -> None:
    """Say the first problem, how many more there are, and how to see them; without any, nothing."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        told = f"{problems[0]}{more}; see 'ringmark check {folder}'"
        raise UserError(f"campaign {folder.resolve().name} does not pass: {told}")
