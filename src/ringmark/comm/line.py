"""A line: one row or one column of a mesh, seen as a mesh of its own.

    mesh 2x4     row (intra)   0 1 2 3, on one node: 1x4       column (inter)   0, on two nodes: 2x1
    0 1 2 3                    4 5 6 7                                          4
    4 5 6 7

Inside a line a rank is known by its position, so a method that knows only rings can run in it as if nobody
else were there. Its shape follows the real nodes: a line that has several ranks on each of several nodes is a
mesh of two levels, and one that crosses nodes unevenly is flat. Communicators are the line's own, bytes are
counted as the mesh counts them.
"""

from __future__ import annotations

from collections import Counter

import torch.distributed as dist

from ringmark.comm.mesh import Axis, Group, Lane, Mesh


class Line(Mesh):
    """This rank's row (axis 'intra') or column ('inter') of a mesh; made by `line`."""

    def __init__(self, mesh: Mesh, axis: Axis) -> None:
        real = mesh.real
        self._lines = tuple(dict.fromkeys(mesh.members(axis, rank) for rank in range(mesh.world_size)))
        self._line = mesh.members(axis)
        self._global_rank = mesh.rank
        nodes, gpus = _shape(self._lines, real.gpus)
        super().__init__(nodes, gpus, self._line.index(mesh.rank), mesh.device, base=real)

    def view(self, nodes: int, gpus: int) -> Mesh:
        """A line has the shape that its nodes give it."""
        if (nodes, gpus) != (self.nodes, self.gpus):
            raise ValueError(f"this line is {self.nodes}x{self.gpus}, it has no {nodes}x{gpus} view")
        return self

    def members(self, axis: Axis, rank: int | None = None) -> tuple[int, ...]:
        """The ranks, as the world numbers them, of an axis around a position of this line."""
        positions = super().members(axis, rank)
        return tuple(self._line[position] for position in positions)

    def _make_group(self, axis: Axis, lane: Lane) -> Group:
        mine, process_group = self.members(axis), None
        # Every rank makes the groups of every line, in one order: new_group is collective over the world.
        patterns = dict.fromkeys(super(Line, self).members(axis, rank) for rank in range(self.world_size))
        for line in self._lines:
            for pattern in patterns:
                members = tuple(line[position] for position in pattern)
                if len(members) > 1:
                    made = dist.new_group(list(members), pg_options=lane.options())
                    process_group = made if members == mine else process_group
        return Group(mine, mine.index(self._global_rank), process_group)


_made: dict[tuple[int, Axis], tuple[Mesh, Line]] = {}


def line(mesh: Mesh, axis: Axis) -> Line:
    """This rank's line of a mesh: one of each, so that the methods of one process share its communicators."""
    key = (id(mesh), axis)
    if key not in _made:
        _made[key] = (mesh, Line(mesh, axis))  # a mesh that is kept alive shares its id with no other
    return _made[key][1]


def _shape(lines: tuple[tuple[int, ...], ...], gpus_real: int) -> tuple[int, int]:
    """Nodes x gpus of a line, if all lines have as many ranks on each of as many nodes; flat if not."""
    counts = [Counter(rank // gpus_real for rank in line) for line in lines]
    shapes = {(len(count), gpus) for count in counts for gpus in count.values()}
    return shapes.pop() if len(shapes) == 1 else (1, len(lines[0]))
