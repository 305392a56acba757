"""Does a printed rate follow from the printed time and shape, and if not, which shape would make it?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note, suspect
from ringmark.published.fit import Reading, fits, holds, outside, rate_of, row_constant, said_shape
from ringmark.published.rows import Table

TITLE = "a rate against its time and shape"


def check(corpus: Corpus) -> Iterator[Finding]:
    agreeing: list[tuple[Table, Reading]] = []
    differing: dict[tuple[str, str], list[tuple[Table, Reading]]] = defaultdict(list)
    for table, reading in corpus.readings:
        if reading.common is None:
            yield _no_common_shape(corpus, table, reading)
            continue
        stated, text = _stated(table)
        if stated and not any(holds(reading.common, constant) for constant in stated):
            differing[table.rows[0].first.source_file, text].append((table, reading))
        else:
            agreeing.append((table, reading))
    yield from _odd_rows([(table, reading) for table, reading in corpus.readings if reading.common])
    for (_, text), tables in differing.items():
        yield _against_said(text, tables)
    yield from _agreeing(corpus, agreeing)


def _stated(table: Table) -> tuple[list[float], str]:
    """K as the source's own words give it, under either mask where it names none."""
    first, said = table.rows[0].first, said_shape(table.rows[0])
    heads, dim, world = first.num_heads_q, first.head_dim_known, first.world_known
    if said is not None:
        return [said.constant], f"{said}: K = {said.constant:g}"
    if heads and dim and world:
        full = heads * dim / world
        return [
            full / 2,
            full,
        ], f"{heads} heads of {dim} on {world} ranks: K = {full / 2:g} causal, {full:g} full"
    return [], ""


def _shown(reading: Reading) -> str:
    low, high = reading.common or (0.0, 0.0)
    text = f"K between {low:.6g} and {high:.6g} from {len(reading.spans)} rates and their times"
    if reading.phase != "said":
        text += f", the rate read as {reading.phase} (its column does not say)"
    return text


def _no_common_shape(corpus: Corpus, table: Table, reading: Reading) -> Finding:
    parts = []
    for row, rate, _ in reading.spans:
        phases = (rate.phase,) if rate.phase else ("fwd", "fwd_bwd", "bwd")
        found = [(phase, row_constant(row, rate, phase)) for phase in phases]
        constants = ", ".join(f"{k.mid:.4g} as {phase}" for phase, k in found if k)
        parts.append(f"S = {row.seqlen_global}: {rate.printed} gives K = {constants}")
    for shape in corpus.shapes[:1]:
        would = [
            f"{rate_of(shape.constant, time.mid, row.seqlen_global, row.first.batch or 1, 'fwd_bwd'):.2f}"
            for row, _, _ in reading.spans
            if (time := row.time_ms("fwd_bwd"))
        ]
        parts.append(
            f"for comparison, {shape} ({shape.where}) has K = {shape.constant:g} and would give "
            f"{' and '.join(would)} from the same forward + backward times"
        )
    return contradiction(
        f"{table.name}: no one shape makes the rates and the times of the table agree, whichever phase "
        "the rate "
        "belongs to",
        [rate.where for _, rate, _ in reading.spans],
        "; ".join(parts),
    )


def _odd_rows(tables: list[tuple[Table, Reading]]) -> Iterator[Finding]:
    """Rows outside of what the others share: by one last digit (not rounded to nearest), or by more."""
    near: dict[str, list[tuple[str, str]]] = defaultdict(list)
    far: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for _, reading in tables:
        low, high = reading.common or (0.0, 0.0)
        for odd, (row, rate, found) in zip(
            outside([k for _, _, k in reading.spans], (low, high)), reading.spans
        ):
            if not odd or rate.value is None:
                continue
            expected = rate.value * (low + high) / 2 / found.mid
            text = (
                f"{row.name}, S = {row.seqlen_global}: {rate.printed} printed, {expected:.4g} from its time"
            )
            close = abs(expected - rate.value) < 10.0 ** -(rate.decimals or 0)
            (near if close else far)[rate.source_file].append((rate.where, text))
    for group, make, what in (
        (
            near,
            note,
            "rates differ from their times by less than one last digit: they are not rounded to nearest",
        ),
        (far, suspect, "rates do not follow from their times as the table's other rows do"),
    ):
        for rows in group.values():
            yield make(what, [where for where, _ in rows], "; ".join(dict.fromkeys(text for _, text in rows)))


def _against_said(text: str, tables: list[tuple[Table, Reading]]) -> Finding:
    first = tables[0][0].rows[0].first
    commons = [reading.common for _, reading in tables if reading.common]
    could = fits((min(low for low, _ in commons), max(high for _, high in commons)), first)
    return contradiction(
        f"rates and times agree with each other, not with the printed shape ({len(tables)} tables)",
        [table.where for table, _ in tables],
        "; ".join(_shown(reading) for _, reading in tables)
        + f". As printed, {text}. "
        + (f"These would agree: {'; '.join(could)}" if could else "No change of one size makes them agree"),
    )


def _agreeing(corpus: Corpus, tables: list[tuple[Table, Reading]]) -> Iterator[Finding]:
    for shape in corpus.shapes:
        matching = [
            (table, reading)
            for table, reading in tables
            if reading.common and holds(reading.common, shape.constant)
        ]
        if matching:
            yield note(
                f"rates and times of {len(matching)} tables agree with one shape: {shape}",
                [table.where for table, _ in matching],
                f"K = {shape.constant:g}, the shape said in full at {shape.where}; "
                + "; ".join(f"{table.name}: {_shown(reading)}" for table, reading in matching),
            )
