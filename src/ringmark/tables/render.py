"""Render: a campaign's records as the files of paper_tables/, written only where they differ.

The files are made in memory first. `check` holds them against what is there and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ringmark.errors import UserError
from ringmark.record import write_atomic
from ringmark.tables import collect, csvtable, latex, page, templates
from ringmark.tables.campaign import Campaign

Files = dict[Path, str]


def campaign_files(campaign: Campaign, out: Path, template_folder: Path) -> Files:
    """Every file of a campaign, by path: its page, its tables, and the tidy table that they come from."""
    collected = collect.collect(campaign)
    made = page.page(collected)
    environment = templates.load(template_folder)
    files: Files = {
        campaign.folder / "cells.csv": collect.csv_text(collected.rows),
        out / f"{campaign.name}.md": templates.fill(environment, "campaign.md.j2", page=made),
    }
    for table in made.tables:
        files[out / campaign.name / f"{table.name}.tex"] = latex.table_text(table)
        files[out / campaign.name / f"{table.name}.csv"] = csvtable.table_text(table)
    return files


def stale(files: Files) -> list[Path]:
    """The files that are missing or differ from what the records give."""
    return [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]


def write(files: Files) -> list[Path]:
    """Write what is stale; what was written."""
    written = stale(files)
    for path in written:
        try:
            write_atomic(path, files[path])
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; make its folder writable") from None
    return written


def refuse_unchecked(campaign: Campaign) -> None:
    """Tables refuse a campaign that `ringmark check` refuses."""
    findings = _findings(campaign.folder)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        told = f"{findings[0]}{more}; see 'ringmark check {campaign.name}'"
        raise UserError(f"campaign {campaign.name} does not pass: {told}")


def _findings(folder: Path) -> list[str]:
    try:
        from ringmark import campaign_check
    except ImportError:
        return []
    check: Callable[[Path], list[str]] = campaign_check.check
    return check(folder)
