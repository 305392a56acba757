"""The scaling plot: one problem on several meshes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from ringmark.tables.canvas import draw_line, empty, fixed_settings, short
from ringmark.tables.group import PHASE_TITLES, Group
from ringmark.tables.style import looks


def pictures(closed: Sequence[Group]) -> Iterator[tuple[str, Figure]]:
    """TFLOP/s per GPU against the number of ranks, where one problem ran on more than one mesh."""
    problems: dict[tuple[str, str], list[Group]] = {}
    for group in closed:
        problems.setdefault((group.shape, group.kernel), []).append(group)
    for (shape, kernel), members in sorted(problems.items()):
        if len({group.sample.world_size for group in members}) > 1:
            for phase in ("fwd", "fwd_bwd"):
                found = figure(sorted(members, key=lambda group: group.sample.world_size), phase)
                if found is not None:
                    yield f"{shape}-{kernel}-{phase}-scaling".replace("_", "-"), found


def figure(members: Sequence[Group], phase: str) -> Figure | None:
    """One problem on several meshes, the smallest first, at the longest length that all of them have."""
    lengths = [{s for line in g.lines for there, s in line.points if there == phase} for g in members]
    common = set.intersection(*lengths)
    if not common:
        return None
    seqlen = max(common)
    timed = [
        (line.row, line.label, (group.sample.world_size, span))
        for group in members
        for line in group.lines
        if (p := line.points.get((phase, seqlen))) and (span := p.rate)
    ]
    if not timed:
        return None
    rows = sorted({line.row for group in members for line in group.lines})
    bounds = {line.row for group in members for line in group.lines if line.is_bound}
    styles = looks([row for row in rows if row not in bounds])
    with fixed_settings():
        meshes = ", ".join(group.mesh for group in members)
        caption = f"{members[0].shape}; kernel {members[0].kernel}; meshes {meshes}"
        title = f"{PHASE_TITLES[phase]} at {short(seqlen)}: TFLOP/s per GPU by the number of ranks"
        drawn, axes, _ = empty(title, caption)
        for row in rows:
            mine = [(label, place) for there, label, place in timed if there == row]
            if mine:
                draw_line(axes, [place for _, place in mine], mine[0][0], styles.get(row))
        worlds = sorted({group.sample.world_size for group in members})
        axes.set_xscale("log", base=2)
        axes.set_xticks(worlds, [str(world) for world in worlds])
        axes.minorticks_off()
        axes.set_xlabel("ranks")
        axes.set_ylim(bottom=0)
        drawn.legend(loc="outside right upper")
        return drawn
