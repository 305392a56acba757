"""A line: one row or one column of a mesh, seen as a flat mesh of its own.

    mesh 2x3     row (intra)   0 1 2        column (inter)   0
    0 1 2                      3 4 5                         3
    3 4 5

Inside a line a rank is known by its position, so a method that knows only rings can run in it as if nobody
else were there. Communicators and counted bytes are those of the mesh.
"""

from __future__ import annotations

from ringmark.comm.mesh import Axis, Group, Mesh


class Line(Mesh):
    """This rank's row (axis 'intra') or column ('inter') of a mesh."""

    def __init__(self, mesh: Mesh, axis: Axis) -> None:
        members = mesh.members(axis)
        position = members.index(mesh.rank)
        super().__init__(1, len(members), position, mesh.device, base=mesh._base or mesh)
        self._mesh, self._axis, self._global_rank = mesh, axis, mesh.rank

    def view(self, nodes: int, gpus: int) -> Mesh:
        """A line has one shape."""
        if (nodes, gpus) != (self.nodes, self.gpus):
            raise ValueError(f"a line of {self.gpus} ranks has no {nodes}x{gpus} view")
        return self

    def group(self, axis: Axis, purpose: str) -> Group:
        """The line's own group for a purpose; across a line there is nobody ('inter')."""
        if axis == "inter":
            return Group((self._global_rank,), 0, None)
        return self._mesh.group(self._axis, f"{purpose}_line")
