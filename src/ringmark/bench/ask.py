"""Whether a method takes a cell at all, asked before ranks are started for it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from ringmark.bench.measure import Refusal, method_of, refusal_of
from ringmark.cell import Cell
from ringmark.errors import UserError, in_words
from ringmark.record import Status


def refusal(cell: Cell) -> Refusal | None:
    """Why the method cannot run the cell, as its record would say, or None."""
    try:
        return refusal_of(method_of(cell), cell)
    except UserError as error:
        return Status.UNSUPPORTED, str(error)
    except ImportError as error:
        return Status.UNAVAILABLE, str(error)
    except (Exception, SystemExit) as error:
        # Its author's mistake: told with the line, no ranks are started for it.
        return Status.CRASHED, f"{cell.method} cannot say whether it takes this cell: {in_words(error)}"


def refusal_elsewhere(cell: Cell) -> Refusal | None:
    """The same, asked in a process of its own: some libraries take a GPU's memory when they are imported."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(refusal, cell).result()
    except BrokenProcessPool:  # the import killed it: the ranks will say how
        return None
