"""The five published documents arrive whole: counted line by line, and rendered again cell by cell.

The documents stay outside the repository. Where they stand beside the checkout (../shared/seeds) they are
read; where they do not, these tests are skipped and say so, and the samples cover the formats.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from ringmark.published import claim
from ringmark.published.claim import Claim
from ringmark.published.ingest import ingest_files

CHECKOUT = Path(__file__).parents[2]
COMMITTED = CHECKOUT / "results" / "published"
DOCUMENTS = sorted((CHECKOUT.parent / "shared" / "seeds").glob("*.txt"))
WITH_DOCUMENTS = pytest.mark.skipif(
    not DOCUMENTS, reason="the published documents are not beside the checkout (../shared/seeds)"
)
TOKEN = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?=us\b|ms\b|s\b|nodes\b|[^\w.]|\.?$)")
NAME_WIDTH = 100  # of the profiler's first column
COLUMN_OF = {
    "Dtype": "dtype", "QKV Format": "options.qkv_format", "CUDA Kernel": "kernel", "B": "batch",
    "Seq Len": "seqlen_global", "CP": "options.cp", "Window": "options.window", "SP Size": "options.sp_size",
    "ring type": "options.ring_type", "seq_len": "seqlen_global", "ulysses_degree": "options.ulysses_degree",
    "ring_degree": "options.ring_degree", "batch_size": "batch", "seqlen": "seqlen_global",
    "num_heads": "num_heads_q", "dim": "head_dim", "causal": "causal", "double_ring": "options.double_ring",
    "opt_bwd": "options.opt_bwd",
}  # fmt: skip


def without_prefix(line: str) -> str:
    return re.sub(r"^g\d+: ?", "", line)


def lines_of(path: Path) -> list[str]:
    return [without_prefix(line) for line in path.read_text(encoding="utf-8").split("\n")]


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return claim.read_csv(COMMITTED / "claims.csv")


def test_the_committed_claims_are_what_the_documents_say(claims: list[Claim]) -> None:
    if not DOCUMENTS:
        pytest.skip("the published documents are not beside the checkout (../shared/seeds)")
    found = ingest_files(DOCUMENTS)
    assert list(found.claims) == claims
    assert (COMMITTED / "claims.csv").read_text(encoding="utf-8") == claim.to_csv(found.claims)
    assert (COMMITTED / "claims.json").read_text(encoding="utf-8") == claim.to_json(
        found.claims, found.skipped
    )
    assert found.skipped == ()


def test_the_committed_claims_by_file(claims: list[Claim]) -> None:
    results = Counter(c.source_file[:3] for c in claims if c.kind == "result")
    assert results == {"000": 27, "001": 63, "002": 310, "003": 168, "004": 16}
    assert len({c.id for c in claims}) == len(claims)
    assert Counter(c.status for c in claims if c.status) == {"oom": 1, "x": 2}


@WITH_DOCUMENTS
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name[:3])
def test_every_number_of_every_line_arrives_once(path: Path, claims: list[Claim]) -> None:
    """Numbers are counted with a plain search, apart from any parser; kernels' names are cut off first."""
    own = [c for c in claims if c.source_file == path.name]
    for number, text in enumerate(lines_of(path), 1):
        here = [c for c in own if c.source_line == number]
        if any(c.format == "profiler" and c.item for c in here):
            text = text[NAME_WIDTH:]
        assert Counter(TOKEN.findall(text)) == accounted(here, own, number), f"{path.name}:{number}: {text}"


def accounted(here: list[Claim], own: list[Claim], number: int) -> Counter[str]:
    """The numbers of a line as claims: printed ones, and the coordinates of the row that stands there."""
    found = Counter(token for c in here for token in TOKEN.findall(c.printed))
    rows = [c for c in own if c.row_line == number and c.kind == "result"]
    if rows and rows[0].format in ("log_table", "markdown_table", "burst_block"):
        first = rows[0]
        coordinates = [first.seqlen_global]
        if first.format == "burst_block":
            coordinates += [first.batch, first.num_heads_q, first.head_dim]
        elif "ring_type" not in first.options:
            coordinates += [first.batch]
        options = [first.options.get(name) for name in ("sp_size", "ulysses_degree", "ring_degree")]
        found.update(str(value) for value in (*coordinates, *options) if value is not None)
    window = [
        c.options["window"] for c in own if c.format == "report" and c.row_line == 40 and c.kind == "result"
    ]
    if window and number == 51:  # the one word of the reports that holds numbers
        found.update(TOKEN.findall(window[0]))
    return found


def cell_of(column: str, row: list[Claim]) -> str:
    """A cell's text, from the claims of its row."""
    for c in row:
        if c.column == column:
            return c.printed
    if column == "fwd_only":
        return str(row[0].phase == "fwd")
    place = COLUMN_OF[column]
    if place.startswith("options."):
        return row[0].options[place.removeprefix("options.")]
    return str(getattr(row[0], place))


@WITH_DOCUMENTS
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name[:3])
def test_every_table_is_rendered_again_cell_by_cell(path: Path, claims: list[Claim]) -> None:
    own = [c for c in claims if c.source_file == path.name and c.kind == "result"]
    rendered, columns = 0, []
    for number, text in enumerate(lines_of(path), 1):
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if cells[0] in ("Dtype", "ring type", "batch_size"):
            columns = cells
        row = [c for c in own if c.row_line == number and c.format != "report"]
        if row and columns and row[0].format != "profiler" and row[0].format != "kernel_list":
            assert [cell_of(column, row) for column in columns] == cells, f"{path.name}:{number}"
            rendered += 1
    rows = {c.row_line for c in own if c.format in ("log_table", "markdown_table", "burst_block")}
    assert rendered == len(rows) > 0


@WITH_DOCUMENTS
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name[:3])
def test_burst_lines_profile_rows_and_reports_are_rendered_again(path: Path, claims: list[Claim]) -> None:
    lines = lines_of(path)
    by_line: dict[int, list[Claim]] = {}
    for c in claims:
        if c.source_file == path.name and c.kind == "result":
            by_line.setdefault(c.source_line, []).append(c)
    for number, row in by_line.items():
        text = lines[number - 1].strip()
        if row[0].format == "burst_block":
            head = "Time:" if row[0].metric == "time" else "TFLOPS|"
            names = ("forward", "forward_backward", "backward")
            parts = [f"{name}: {c.printed} {c.unit}" for name, c in zip(names, row)]
            assert f"{head} | {' | '.join(parts)}" == text
        elif row[0].format == "profiler" and row[0].item:
            assert " ".join([row[0].item, *(c.printed + (c.unit or "") for c in row)]) == " ".join(
                text.split()
            )
        elif row[0].format == "profiler":
            assert f"{row[0].column}: {row[0].printed}{row[0].unit}" == text
        elif row[0].format == "report":
            label, value = (part.strip() for part in text.removeprefix("- ").split(":"))
            assert (row[0].column, f"{row[0].printed} {row[0].unit}") == (label, value)
        elif row[0].format == "kernel_list":
            pairs = [f"({a.printed}, {b.printed})" for a, b in zip(row[::2], row[1::2])]
            assert f"{{'flash': [{', '.join(pairs)}], 'SendRecv': []}}" == text
