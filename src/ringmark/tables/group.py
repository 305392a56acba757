"""A group: the cells that may stand in one table: one shape, one mesh, one kernel asked for.

A closed group ran one kernel on one kind of device for every row. An open group takes each method's
best kernel and settings, and says which.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ringmark import catalog
from ringmark.cell import BOUND
from ringmark.tables.cellrow import CellRow
from ringmark.tables.point import WRONG, Point, backward, point

Place = tuple[str, int]  # phase, seqlen_global
PHASE_TITLES = {"fwd_bwd": "forward + backward", "fwd": "forward", "bwd": "backward, derived"}


@dataclass(frozen=True)
class Line:
    """One row of tables: a method with its options, and its points."""

    row: str
    method: str
    label: str
    implementation: str
    points: dict[Place, Point]

    @property
    def is_bound(self) -> bool:
        return self.method == BOUND

    @property
    def is_ours(self) -> bool:
        """Whether it is one of ringmark's own methods; the bound is nobody's."""
        return self.implementation == "ringmark" and not self.is_bound


@dataclass(frozen=True)
class Group:
    """Lines that are compared with each other."""

    shape: str
    mesh: str
    kernel: str  # as asked; "best" in an open group
    lines: tuple[Line, ...]
    sample: CellRow = field(repr=False)
    open: bool = False

    @property
    def slug(self) -> str:
        kind = "open" if self.open else self.kernel
        return f"{self.shape}-{self.mesh}-{kind}".replace("_", "-")

    @property
    def seqlens_global(self) -> list[int]:
        return sorted({seqlen for line in self.lines for _, seqlen in line.points})

    @cached_property
    def passed_rows(self) -> list[CellRow]:
        folded = {id(row): row for line in self.lines for p in line.points.values() for row in p.rows}
        return [row for row in folded.values() if row.passed]

    @property
    def kernels_ran(self) -> dict[str, list[str]]:
        """The kernels that ran, with their versions: a peer may bring its own build of the same kernel."""
        versions: dict[str, set[str]] = defaultdict(set)
        for row in self.passed_rows:
            versions[str(row.kernel_ran)].add(str(row.kernel_version))
        return {kernel: sorted(found) for kernel, found in sorted(versions.items())}

    @property
    def closed(self) -> bool:
        devices = {row.device for row in self.passed_rows}
        return not self.open and len(self.kernels_ran) == 1 and len(devices) == 1

    @cached_property  # asked for each point of a table
    def repeats(self) -> list[int]:
        """How often cells were tried: one number where all as often."""
        measured = (p for line in self.lines for (phase, _), p in line.points.items() if phase != "bwd")
        return sorted({len(p.rows) for p in measured})

    @cached_property  # asked for each point of a table
    def programs(self) -> list[str]:
        """Which states of ringmark measured, the one of most cells first."""
        counts = Counter(row.program for row in self.passed_rows if row.program)
        return sorted(counts, key=lambda program: (-counts[program], program))

    def phases(self) -> list[str]:
        there = {phase for line in self.lines for phase, _ in line.points}
        return [phase for phase in PHASE_TITLES if phase in there]


def groups(rows: Sequence[CellRow]) -> list[Group]:
    """The closed groups of a campaign, then an open one for each problem with more than one kernel."""
    by_kernel: dict[tuple[str, str, str], list[CellRow]] = defaultdict(list)
    by_problem: dict[tuple[str, str], list[CellRow]] = defaultdict(list)
    for row in rows:
        by_kernel[(row.shape, row.mesh, row.kernel_asked)].append(row)
        by_problem[(row.shape, row.mesh)].append(row)
    made = []
    for (shape, mesh), members in sorted(by_problem.items(), key=lambda item: _problem_order(item[1][0])):
        kernels = sorted({row.kernel_asked for row in members})
        for kernel in kernels:
            inside = by_kernel[(shape, mesh, kernel)]
            made.append(Group(shape, mesh, kernel, _lines(inside), inside[0]))
        if len(kernels) > 1:
            made.append(_open_group(shape, mesh, made[-len(kernels) :], members[0]))
    return made


def _problem_order(row: CellRow) -> tuple[object, ...]:
    return (row.world_size, row.nodes, row.dtype, row.num_heads_q, row.num_heads_kv, row.shape)


def _lines(rows: Iterable[CellRow]) -> tuple[Line, ...]:
    by_row: dict[str, dict[Place, list[CellRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_row[row.row][(row.phase, row.seqlen_global)].append(row)
    lines = []
    for name, places in by_row.items():
        members = [row for repeats in places.values() for row in repeats]
        points = _with_backward({place: point(repeats) for place, repeats in places.items()})
        lines.append(Line(name, members[0].method, _label(members), _implementation(members), points))
    return _with_versions(tuple(sorted(lines, key=_line_order)))


def _with_versions(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Peers' points with a note where their kernel is of another version than that of ringmark's rows.

    Versions are compared by number: what stands around it (a patch, the library it came through) is told in
    the group's head.
    """
    ours: dict[str | None, set[str]] = defaultdict(set)
    for row in (r for line in lines if line.implementation == "ringmark" for r in _passed(line)):
        ours[row.kernel_ran].add(_number(row))
    return tuple(
        line
        if line.implementation == "ringmark"
        else replace(line, points={place: _with_version(p, ours) for place, p in line.points.items()})
        for line in lines
    )


def _passed(line: Line) -> list[CellRow]:
    return [row for p in line.points.values() for row in p.rows if row.passed]


def _with_version(p: Point, ours: Mapping[str | None, set[str]]) -> Point:
    found = {_number(row): row for row in p.rows if row.passed}
    notes = [
        f"its {row.kernel_ran} is {row.kernel_version}, that of ringmark's rows {' or '.join(sorted(known))}"
        for number, row in found.items()
        if (known := ours.get(row.kernel_ran)) and number not in known
    ]
    return replace(p, notes=(*p.notes, *notes)) if notes else p


def _number(row: CellRow) -> str:
    """'2.8.3' of 'flash-attn 2.8.3 + opt_bwd': the first word that starts with a digit."""
    text = row.kernel_version or ""
    return next((word for word in text.split() if word[0].isdigit()), text)


def _line_order(line: Line) -> tuple[object, ...]:
    """Ours first, then the peers, the bound last."""
    return (line.is_bound, line.implementation != "ringmark", line.implementation, line.row)


def _with_backward(points: dict[Place, Point]) -> dict[Place, Point]:
    for seqlen in sorted({seqlen for _, seqlen in points}):
        derived = backward(points.get(("fwd", seqlen)), points.get(("fwd_bwd", seqlen)))
        if derived is not None:
            points[("bwd", seqlen)] = derived
    return points


def _label(rows: Sequence[CellRow]) -> str:
    """What the method calls itself, with its options; a cell that never started knows its name alone."""
    told = [row.label for row in rows if row.label != row.method] or [rows[0].method]
    options = rows[0].row.split("+")[1:]
    return f"{told[0]} ({', '.join(options)})" if options else told[0]


def _implementation(rows: Sequence[CellRow]) -> str:
    """Whose it is; a peer that never began to run has not said more than its name."""
    unsaid = rows[0].method if rows[0].method in catalog.peer_names() else "ringmark"
    return next((row.implementation for row in rows if row.implementation), unsaid)


def _open_group(shape: str, mesh: str, closed: Sequence[Group], sample: CellRow) -> Group:
    """Each method's best line and kernel at each place; what was taken stands in the point's notes.

    Our methods take any kernel, so one that was not tried with the best of ours has no place here: it would
    be compared by its kernel. A wrong answer keeps its place whatever the kernel.
    """
    candidates: dict[str, list[tuple[Line, Group]]] = defaultdict(list)
    for group in closed:
        for line in group.lines:
            candidates[line.method].append((line, group))
    ours = _kernels_of_ours(closed)
    lines = []
    for method, found in candidates.items():
        places = {place for line, _ in found for place in line.points if place[0] != "bwd"}
        if found[0][0].is_ours:
            tried = {(place, group.kernel) for line, group in found for place in line.points}
            wrong = {place for line, _ in found for place, p in line.points.items() if p.status == WRONG}
            places = {p for p in places if p not in ours or (p, ours[p]) in tried or p in wrong}
        points = {place: _best(place, found) for place in sorted(places)}
        first = found[0][0]
        if points:
            lines.append(Line(method, method, first.label.split(" (")[0], first.implementation, points))
    return Group(shape, mesh, "best", tuple(sorted(lines, key=_line_order)), sample, open=True)


def _kernels_of_ours(closed: Sequence[Group]) -> dict[Place, str]:
    """By place, the kernel with which the fastest of our methods ran."""
    fastest: dict[Place, tuple[float, str]] = {}
    for group in closed:
        for line in group.lines:
            for place, p in line.points.items() if line.is_ours else ():
                if p.time_ms is not None:
                    found = (p.time_ms.value, group.kernel)
                    fastest[place] = min(fastest.get(place, found), found)
    return {place: kernel for place, (_, kernel) in fastest.items()}


def _best(place: Place, found: Sequence[tuple[Line, Group]]) -> Point:
    """The best of a method's points at a place, or the word where one of them is wrong.

    That is the method as it comes, unless options make it clearly faster: of several that are level the
    fastest would be the luckiest. The bound has no such default, the fastest is what others are held against.
    Another kernel's number in the place of a wrong answer would hide that the method was caught. One that
    failed in another way is told in a note beside the best.
    """
    there = [(line.points[place], line, group.kernel) for line, group in found if place in line.points]
    wrong = [one for one in there if one[0].status == WRONG]
    timed = [(p.time_ms.value, p, line, kernel) for p, line, kernel in there if p.time_ms is not None]
    if wrong or not timed:
        first = (wrong or there)[0][0]
        told = [f"{_taken(*one)}: {note}" for one in wrong or there for note in one[0].notes]
        return replace(first, notes=tuple(told))
    fastest = min(timed, key=lambda one: one[0])
    as_it_comes = [one for one in timed if one[2].row == one[2].method and not one[2].is_bound]
    level = [
        one for one in as_it_comes if one[0] <= fastest[0] * max(one[1].clear_lead, fastest[1].clear_lead)
    ]
    _, best, line, kernel = min(level or [fastest], key=lambda one: one[0])
    failed = [f"{_taken(*one)}: {one[0].status}" for one in there if one[0].time_ms is None]
    return replace(best, taken=(_taken(best, line, kernel), *failed))


def _taken(p: Point, line: Line, asked: str) -> str:
    """'kernel flash4, ulysses=4': what a point of an open table was made with."""
    ran = next((row.kernel_ran for row in p.rows if row.kernel_ran), asked)
    return ", ".join([f"kernel {ran}", *line.row.split("+")[1:]])
