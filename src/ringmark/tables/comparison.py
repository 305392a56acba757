"""The comparison: methods by rows, lengths by columns; one table for each figure of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ringmark.tables.group import PHASE_TITLES, Group, Line, Place
from ringmark.tables.numbers import decimals, fixed
from ringmark.tables.point import APART_FROM_COLUMN, NOT_RUN, OF_THE_BOUND, Point, Span
from ringmark.tables.table import Entry, Notes, Table, word

Figure = Callable[[Point], "Span | None"]


def rate(p: Point) -> Span | None:
    return p.rate


def time_ms(p: Point) -> Span | None:
    return p.time_ms


def rates(group: Group, phase: str) -> Table:
    """TFLOP/s per GPU with its interval, and the fraction of the bound."""
    with_fraction = phase != "bwd"
    fraction = f", fraction of {'its own kernel' if group.open else 'the bound'}" if with_fraction else ""
    title = f"{PHASE_TITLES[phase]}: TFLOP/s per GPU [{_interval(phase)}]{fraction}"
    return _spans(group, phase, "tflops", title, rate, more_is_better=True, with_fraction=with_fraction)


def times(group: Group, phase: str) -> Table:
    """Milliseconds with their interval."""
    title = f"{PHASE_TITLES[phase]}: ms [{_interval(phase)}]"
    return _spans(group, phase, "ms", title, time_ms, more_is_better=False, with_fraction=False)


def _interval(phase: str) -> str:
    """A difference of two medians has no level of its own."""
    return "what both intervals allow" if phase == "bwd" else "95% interval"


def _spans(
    group: Group,
    phase: str,
    kind: str,
    title: str,
    figure: Figure,
    *,
    more_is_better: bool,
    with_fraction: bool,
) -> Table:
    notes, columns, lines = Notes(), [], _lines(group, phase)
    for seqlen in _seqlens(group, phase):
        points = [line.points.get((phase, seqlen)) for line in lines]
        best = best_line(lines, points, figure, more_is_better)
        most = _run_of_most(points)
        told = [_notes(group, phase, p, most, with_fraction) if p else () for p in points]
        columns.append(_column(lines, points, figure, best, notes, told, with_fraction))
    rows = [(word(line.label), *(column[i] for column in columns)) for i, line in enumerate(lines)]
    return Table(
        name=f"{group.slug}-{phase.replace('_', '-')}-{kind}",
        title=title,
        header=("method", *(str(seqlen) for seqlen in _seqlens(group, phase))),
        rows=tuple(rows),
        notes=tuple(notes.sentences),
        last_is_apart=bool(lines) and lines[-1].is_bound,
    )


def _lines(group: Group, phase: str) -> list[Line]:
    """The lines that were run in this phase at all: one that was not has nothing to say here."""
    return [line for line in group.lines if any(there == phase for there, _ in line.points)]


def _seqlens(group: Group, phase: str) -> list[int]:
    return sorted({seqlen for line in group.lines for there, seqlen in line.points if there == phase})


def best_line(
    lines: Sequence[Line], points: Sequence[Point | None], figure: Figure, more_is_better: bool
) -> int | None:
    """The line that is clearly best: its interval clear of every other's, its median ahead by the margin.

    The margin is what launches differ by. And measured in one run with every other: between runs a machine,
    its links and its clocks change by more. The bound does no communication and is no competitor.
    """
    spans = [
        (span, i, p)
        for i, (line, p) in enumerate(zip(lines, points))
        if p is not None and not line.is_bound and (span := figure(p)) is not None
    ]
    if len(spans) < 2:
        return None
    top, winner, best = (
        max(spans, key=lambda one: one[0].low) if more_is_better else min(spans, key=lambda one: one[0].high)
    )

    def behind(span: Span, p: Point) -> bool:
        lead = max(best.clear_lead, p.clear_lead)
        if more_is_better:
            ahead = span.high < top.low and span.value * lead < top.value
        else:
            ahead = span.low > top.high and span.value > top.value * lead
        return ahead and bool(best.runs & p.runs)

    return winner if all(behind(span, p) for span, i, p in spans if i != winner) else None


def _run_of_most(points: Sequence[Point | None]) -> str | None:
    """The run that most of a column's points are from; of several that have as many the first."""
    counts = Counter(run for p in points if p is not None for run in p.runs if run)
    return min(counts, key=lambda run: (-counts[run], run), default=None)


def _column(
    lines: Sequence[Line],
    points: Sequence[Point | None],
    figure: Figure,
    best: int | None,
    notes: Notes,
    told: Sequence[Sequence[str]],
    with_fraction: bool,
) -> list[Entry]:
    spans = [figure(p) if p is not None else None for p in points]
    places = decimals([span.value for span in spans if span is not None])
    entries = []
    for i, (line, p, span) in enumerate(zip(lines, points, spans)):
        marks = notes.marks(told[i])
        if p is None:
            entries.append(word(NOT_RUN))
        elif span is None:
            entries.append(Entry(p.status, marks=marks))
        else:
            entries.append(
                Entry(
                    fixed(span.value, places),
                    f"[{fixed(span.low, places)}, {fixed(span.high, places)}]",
                    _fraction(line, p) if with_fraction else "",
                    is_number=True,
                    best=i == best,
                    marks=marks,
                )
            )
    return entries


def _notes(group: Group, phase: str, p: Point, most: str | None, with_fraction: bool) -> tuple[str, ...]:
    """A point's notes; how many repeats it has, and what measured it, where a group's cells differ in that.

    A derived backward has no launches of its own.
    """
    told = list(p.told if with_fraction else _without_the_bound(p.told))
    if len(group.repeats) > 1 and len(p.rows) > 1 and phase != "bwd":
        fraction = "; the fraction is the median of theirs, each of its own run"
        told.append(f"{len(p.rows)} repeats{fraction if with_fraction else ''}")
    if p.runs and most not in p.runs:
        told.append(APART_FROM_COLUMN)
    return (*told, *_program_notes(group, p))


def _without_the_bound(told: Sequence[str]) -> list[str]:
    """Notes for a table that has no fractions."""
    return [note for note in told if not note.startswith(OF_THE_BOUND)]


def _program_notes(group: Group, p: Point) -> list[str]:
    """Which other state of ringmark measured a point than measured most of the group."""
    others = set(group.programs[1:]) & {row.program for row in p.rows if row.passed}
    return [f"measured by ringmark {program}" for program in sorted(map(str, others))]


def _fraction(line: Line, p: Point) -> str:
    if line.is_bound:
        return "bound"
    return "no bound" if p.fraction is None else fixed(p.fraction, 3)


def memory(group: Group, phase: str) -> Table:
    """Peak memory of the worst rank: above the inputs, and in all."""
    columns, notes = [], Notes()
    seqlens, lines = _seqlens(group, phase), _lines(group, phase)
    for seqlen in seqlens:
        points = [line.points.get((phase, seqlen)) for line in lines]
        known = [p.memory_above_inputs_mib for p in points if p and p.memory_above_inputs_mib is not None]
        places = decimals(known, digits=3, most=3)
        columns.append([_memory_entry(group, p, places, notes) for p in points])
    rows = [(word(line.label), *(column[i] for column in columns)) for i, line in enumerate(lines)]
    return Table(
        name=f"{group.slug}-{phase.replace('_', '-')}-memory",
        title=f"{PHASE_TITLES[phase]}: peak memory above the inputs (in all), MiB on the highest rank",
        header=("method", *(str(seqlen) for seqlen in seqlens)),
        rows=tuple(rows),
        notes=tuple(notes.sentences),
        last_is_apart=bool(lines) and lines[-1].is_bound,
    )


def _memory_entry(group: Group, p: Point | None, places: int, notes: Notes) -> Entry:
    """What ran is told beside a peak; what held the clock down, or how long it ran, does not change one."""
    if p is None:
        return word(NOT_RUN)
    if p.memory_above_inputs_mib is None or p.memory_peak_mib is None:
        return Entry(p.status, marks=notes.marks(p.notes))
    whole = f"({fixed(p.memory_peak_mib, places)})"
    marks = notes.marks([*p.taken, *_program_notes(group, p)])
    return Entry(fixed(p.memory_above_inputs_mib, places), extra=whole, is_number=True, marks=marks)


def base_line(lines: Sequence[Line], bases: Sequence[str]) -> Line | None:
    """The line that others are held against: of the first name that is there, whether it passed or not."""
    return next((line for name in bases for line in lines if name in (line.row, line.method)), None)


def speedups(group: Group, phase: str, bases: Sequence[str]) -> Table | None:
    """Ratios of medians to one method's, whose own milliseconds stand beside them."""
    lines = [line for line in _lines(group, phase) if not line.is_bound]
    base = base_line(lines, bases)
    if base is None or len(lines) < 2:
        return None
    notes, seqlens = Notes(), _seqlens(group, phase)
    rows = [
        (word(line.label), *(_ratio(line, base, (phase, seqlen), notes) for seqlen in seqlens))
        for line in lines
    ]
    return Table(
        name=f"{group.slug}-{phase.replace('_', '-')}-speedup",
        title=f"{PHASE_TITLES[phase]}: times as fast as {base.label} (whose ms stand in its row)",
        header=("method", *(str(seqlen) for seqlen in seqlens)),
        rows=tuple(rows),
        notes=tuple(notes.sentences),
    )


def _ratio_marks(p: Point, notes: Notes) -> tuple[int, ...]:
    return notes.marks(_without_the_bound(p.told))


def _ratio(line: Line, against: Line, place: Place, notes: Notes) -> Entry:
    p, base = line.points.get(place), against.points.get(place)
    if p is None:
        return word(NOT_RUN)
    if p.time_ms is None:
        return Entry(p.status, marks=notes.marks(p.notes))
    if line is against:
        text = f"{fixed(p.time_ms.value, decimals([p.time_ms.value]))} ms"
        return Entry(text, marks=_ratio_marks(p, notes))
    if base is None or base.time_ms is None:
        return word("no base")
    ratio = base.time_ms.over(p.time_ms)
    interval = f"[{fixed(ratio.low, 3)}, {fixed(ratio.high, 3)}]"
    apart = notes.marks([] if p.runs & base.runs else [f"{against.label} was measured in another run"])
    return Entry(fixed(ratio.value, 3), interval, is_number=True, marks=(*_ratio_marks(p, notes), *apart))
