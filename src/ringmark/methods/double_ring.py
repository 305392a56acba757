"""Double ring: the zigzag ring, but the way round has two levels, as the links have.

    node 0   0 -> 1 -> 2 -> 3 -> 0     inner rings turn inside the nodes, on their fast links,
    node 1   4 -> 5 -> 6 -> 7 -> 4     I - 1 hops in each of J windows
             |    |    |    |
             outer rings step between the nodes, once a window, posted at its start and needed at its end

A slow hop between nodes has a whole window to hide under instead of one step: 4 x 8 ranks send 28 inner and
3 outer hops where a flat ring sends 31, every one of them at the pace of the slowest link.

Gu et al.: LoongTrain: Efficient Training of Long-Sequence LLMs with Head-Context Parallelism, 2024.
"""

from __future__ import annotations

from ringmark.methods import zigzag


class Method(zigzag.Method):
    """The zigzag ring over nodes x gpus; on one node, or one gpu a node, it is the flat ring by itself."""

    label = "Double ring (LoongTrain)"

    def levels(self, nodes: int, gpus: int) -> tuple[int, int]:
        return nodes, gpus
