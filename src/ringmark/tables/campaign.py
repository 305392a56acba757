"""A campaign's folder: found by its path or its name, with its records and the files beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringmark.errors import UserError, nearest


@dataclass(frozen=True)
class Campaign:
    """A folder under results/ that holds records."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def record_files(self) -> list[Path]:
        """Every record's path under the folder, sorted as text."""
        root = self.folder / "records"
        paths = (path.relative_to(self.folder) for path in root.rglob("*.json"))
        return sorted((path for path in paths if not path.name.startswith(".")), key=str)

    def beside(self, name: str) -> dict[str, Any] | None:
        """preflight.json or campaign.json, where there is one."""
        path = self.folder / name
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): restore or delete it") from None
        return data if isinstance(data, dict) else {"content": data}


def find(asked: str, results: Path = Path("results")) -> Campaign:
    """The campaign that a folder, or a name under results/, stands for."""
    for folder in (Path(asked), results / asked):
        if (folder / "records").is_dir():
            return Campaign(folder)
    if Path(asked).is_dir():
        raise UserError(f"{asked} has no folder 'records': give the folder of a campaign, like results/local")
    known = [found.name for found in every(results)]
    hint = nearest(asked, known) if known else f"there is none under {results}/ yet"
    raise UserError(f"there is no campaign {asked!r}: {hint}")


def every(results: Path = Path("results")) -> list[Campaign]:
    """All campaigns under results/, by name."""
    return [Campaign(path.parent) for path in sorted(results.glob("*/records")) if path.is_dir()]


def project_root(campaign: Campaign | None, templates: Path | None) -> Path:
    """The folder that holds paper_tables/templates: the working directory, one above it or the campaign.

    With templates of their own, tables go under the working directory.
    """
    if templates is not None:
        return Path()
    for start in [Path.cwd(), *([campaign.folder.resolve()] if campaign else [])]:
        for folder in (start, *start.parents):
            if (folder / "paper_tables" / "templates").is_dir():
                return folder
    raise UserError(
        "the folder paper_tables/templates is not here: run in a checkout of ringmark, or give --templates"
    )
