"""Render: a campaign's records as the files of paper_tables/, written only where they differ.

The files are made in memory first. `stale` holds them against what is there and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ringmark.published.claim import read_csv
from ringmark.record import write_atomic
from ringmark.tables import (
    blocks,
    collect,
    csvtable,
    formpage,
    group,
    headline,
    latex,
    macros,
    page,
    publishedpage,
    templates,
)
from ringmark.tables.campaign import Campaign
from ringmark.tables.table import Table

Files = dict[Path, str]


@dataclass
class Renderer:
    """Where templates come from and tables go to; what was rendered so far, in memory."""

    root: Path  # of the Markdown files that have blocks
    out: Path
    template_folder: Path
    files: Files = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)  # the campaigns that have records, rendered or not
    headlines: dict[str, headline.Headline | None] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)  # those of which every table is rendered
    placed: set[str] = field(default_factory=set)  # the blocks that some Markdown file has

    def fill(self, template: str, **values: object) -> str:
        return templates.fill(templates.load(self.template_folder), template, **values)

    def campaign(self, campaign: Campaign) -> None:
        """A campaign's page, tables, forms and figures for prose, and the tidy table that they come from."""
        collected = collect.checked(campaign)
        found = group.groups(collected.rows)
        made = page.page(collected, found)
        forms = formpage.form_groups(found)
        self.files[campaign.folder / "cells.csv"] = collect.csv_text(collected.rows)
        self.files[self.out / f"{campaign.name}.md"] = self.fill("campaign.md.j2", page=made)
        folder = self.out / campaign.name
        self.files[folder / "forms.md"] = self.fill(
            "forms.md.j2", name=campaign.name, title=made.title, groups=forms
        )
        self.files[folder / "numbers.tex"] = macros.text(campaign.name, found)
        self._tables(folder, [*made.tables, *(table for one in forms for table in one.tables)])
        self.headlines[campaign.name] = headline.headline(campaign.name, found)

    def published(self, claims_file: Path) -> None:
        """The page and the tables of the published claims."""
        made = publishedpage.page(read_csv(claims_file))
        self.files[self.out / "published.md"] = self.fill("published.md.j2", page=made)
        self._tables(self.out / "published", made.all_tables)

    def blocks(self, *, whole: bool) -> None:
        """The blocks of Markdown files; with `whole`, those of campaigns without records too."""
        for path in blocks.pages(self.root):
            text = path.read_text(encoding="utf-8")
            filled = blocks.filled(text, lambda name, path=path: self._block(name, path, whole), path)  # type: ignore[misc]
            if filled != text:  # what somebody writes beside it meanwhile is not undone
                self.files[path] = filled

    def _block(self, name: str, where: Path, whole: bool) -> str | None:
        kind, campaigns = blocks.source(name, where)
        self.placed.add(name)
        shown = next((each for each in campaigns if each in self.recorded | set(self.headlines)), None)
        if shown not in self.headlines and not whole:
            return None  # another campaign's, or nobody's: as it was
        return self.fill(f"block_{kind}.md.j2", headline=self.headlines.get(shown or ""))

    def missing_blocks(self) -> list[str]:
        """Blocks of data/tables.yaml that have lost their place."""
        return [name for name in page.choices()["blocks"] if name not in self.placed]

    def left_over(self, *, whole: bool) -> list[Path]:
        """Tables that no record makes any more: of a group that is gone, or copied there by hand.

        With `whole`, every campaign has been rendered: those of a campaign that is gone are found as well.
        """
        subfolders = [path for path in sorted(self.out.glob("*")) if path.is_dir()]
        folders = [self.out, *subfolders] if whole else self.folders
        there = (path for folder in folders for path in sorted(folder.glob("*")))
        return [path for path in there if path.suffix in (".tex", ".csv", ".md") and path not in self.files]

    def _tables(self, folder: Path, tables: Iterable[Table]) -> None:
        self.folders.append(folder)
        for table in tables:
            self.files[folder / f"{table.name}.tex"] = latex.table_text(table)
            self.files[folder / f"{table.name}.csv"] = csvtable.table_text(table)


def stale(files: Files) -> list[Path]:
    """The files that are missing or differ from what the records give."""
    return [path for path, text in files.items() if not path.exists() or path.read_bytes() != text.encode()]


def write(files: Files) -> list[Path]:
    """Write what is stale; what was written."""
    written = stale(files)
    for path in written:
        write_atomic(path, files[path], durable=False)
    return written
