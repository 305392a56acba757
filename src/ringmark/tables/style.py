"""How plots look: one look for each method everywhere, told apart by marker and line as well as by colour.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; markers and dashes carry the same
difference in grey.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A00", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "p", "h", "*")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 1)))
BOUND_COLOUR = "#000000"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


@dataclass(frozen=True)
class Look:
    """The look of one method."""

    colour: str
    marker: str
    dashes: Any


def looks(rows: list[str]) -> dict[str, Look]:
    """A look for each row of tables; rows in one order get one look, whatever the plot."""
    return {
        row: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, row in enumerate(rows)
    }


def settings() -> dict[str, Any]:
    """matplotlib's settings: fixed, so that the same figures give the same bytes."""
    return {
        "svg.hashsalt": "ringmark",
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "lines.linewidth": 1.4,
        "lines.markersize": 5,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "figure.dpi": 100,
        "savefig.dpi": 200,
    }
