"""Pairs of systems that one document measures at one length and phase: how much faster one is said to be."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.rows import Row, Span, span


@dataclass(frozen=True)
class Pair:
    """The speed of one system over another's, with what rounding leaves open."""

    over: Claim
    under: Claim
    over_row: Row
    under_row: Row
    phase: str
    target: float
    low: float
    high: float

    @property
    def seqlen_global(self) -> int:
        return self.over_row.seqlen_global


def pairs_of(corpus: Corpus) -> Iterator[Pair]:
    """The pairs, each once; a row printed again is not counted again."""
    groups: dict[tuple[object, ...], dict[object, tuple[Row, Claim, Span]]] = defaultdict(dict)
    for row in corpus.rows:
        first = row.first
        if first.system is None:
            continue
        degrees = tuple(first.options.get(key) for key in ("ulysses_degree", "ring_degree"))
        for phase in ("fwd", "fwd_bwd"):
            found = _speed(corpus, row, phase)
            if found:
                key = (first.source_file, row.seqlen_global, first.batch, degrees, phase)
                groups[key].setdefault(first.system, (row, *found))
    for (*_, of_phase), systems in groups.items():
        for (row_a, a, fast), (row_b, b, slow) in itertools.combinations(systems.values(), 2):
            if fast.mid < slow.mid:
                (row_a, a, fast), (row_b, b, slow) = (row_b, b, slow), (row_a, a, fast)
            yield Pair(
                a,
                b,
                row_a,
                row_b,
                str(of_phase),
                fast.mid / slow.mid,
                fast.low / slow.high,
                fast.high / slow.low,
            )


def _speed(corpus: Corpus, row: Row, phase: str) -> tuple[Claim, Span] | None:
    """A row's speed, in units of work at this length: S^2 over its time, or its rate where that is finer.

    A rate that contradicts its own row is left aside for the time; K cancels as both rows run one shape.
    """
    time, time_claim = row.time_ms(phase), row.find("time", phase)
    rate = next(
        (c for c in row.claims if c.metric == "rate" and c.value and corpus.phase(c)[0] == phase), None
    )
    constant = corpus.constant(row)
    coarser = (
        rate is not None and time is not None and span(rate).relative_half_width > time.relative_half_width
    )
    if time and time_claim and (rate is None or constant is None or coarser):
        return time_claim, Span(1 / time.high, 1 / time.mid, 1 / time.low)
    if rate is None:
        return None
    printed = span(rate)
    if time is None or constant is None:
        return rate, printed  # a document that prints rates alone: all of its rows are of this kind
    scale = 1 / (corpus.work(row, phase, constant))
    return rate, Span(*(value * scale for value in printed))
