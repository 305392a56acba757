"""Which shape makes a printed rate and a printed time agree, under the one FLOPs formula.

A rate times its time is a count of operations; over 4 b S^2 and the phase's factor it leaves the shape
constant K = heads x head size x causal factor / ranks. Rows of one table share a shape, so they share K.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.flops import FACTOR
from ringmark.published.claim import Claim
from ringmark.published.rows import Row, Span, Table, span

_SLACK = 2e-4
COMMON_HEAD_DIMS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 256)


@dataclass(frozen=True)
class Shape:
    """Heads, head size, causal factor and ranks, and where they were said."""

    num_heads_q: int
    head_dim: int
    causal: bool
    world_size: int
    where: str

    @property
    def constant(self) -> float:
        return self.num_heads_q * self.head_dim * (0.5 if self.causal else 1.0) / self.world_size

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full attention"
        return f"{self.num_heads_q} heads of {self.head_dim}, {mask}, {self.world_size} ranks"


def constant_of(rate: Span, time_ms: Span, seqlen_global: int, batch: int, phase: str) -> Span:
    """K of a rate in TFLOP/s and a time, with the interval that their rounding leaves."""
    scale = 1e12 * 1e-3 / (4.0 * batch * float(seqlen_global) ** 2 * FACTOR[phase])
    return Span(
        rate.low * time_ms.low * scale, rate.mid * time_ms.mid * scale, rate.high * time_ms.high * scale
    )


def rate_of(constant: float, time_ms: float, seqlen_global: int, batch: int, phase: str) -> float:
    """The rate that K and a time give."""
    return constant * 4.0 * batch * float(seqlen_global) ** 2 * FACTOR[phase] / (time_ms * 1e-3) / 1e12


def overlap(spans: list[Span]) -> tuple[float, float] | None:
    """The stretch that most intervals share, where at least two thirds of them do."""
    best: tuple[float, float] | None = None
    most = 0
    for edge in sorted(each.low for each in spans):
        holding = [each for each in spans if each.low <= edge <= each.high]
        if len(holding) > most:
            most, best = len(holding), (edge, min(each.high for each in holding))
    return best if 3 * most >= 2 * len(spans) else None


def holds(common: tuple[float, float], constant: float) -> bool:
    """Whether a shape's constant is the common one, within the five digits that rates and times leave it."""
    return common[0] * (1 - _SLACK) <= constant <= common[1] * (1 + _SLACK)


def outside(spans: list[Span], common: tuple[float, float]) -> list[bool]:
    """Which intervals do not touch the common stretch."""
    return [each.high < common[0] or each.low > common[1] for each in spans]


def said_shape(row: Row) -> Shape | None:
    """The row's shape where its source says all of it."""
    first = row.first
    heads, dim, world = first.num_heads_q, first.head_dim_known, first.world_known
    if heads is None or dim is None or world is None or first.causal is None:
        return None
    return Shape(heads, dim, first.causal, world, first.where)


def row_constant(row: Row, rate: Claim, phase: str) -> Span | None:
    """K of one rate of a row, read as a rate of `phase`."""
    time = row.time_ms(phase)
    if time is None or time.low <= 0 or rate.value is None or row.first.batch is None:
        return None
    return constant_of(span(rate), time, row.seqlen_global, row.first.batch, phase)


@dataclass(frozen=True)
class Reading:
    """How a table's rates read: the phase they belong to and the K they share, if there is one."""

    phase: str | None
    common: tuple[float, float] | None
    spans: tuple[tuple[Row, Claim, Span], ...]


def read_table(table: Table, shapes: list[Shape]) -> Reading | None:
    """The phase under which a table's rates of unsaid phase share one K; said phases are taken as said."""
    rates = [(row, c) for row in table.rows for c in row.claims if c.metric == "rate" and c.value]
    said = [(row, c, row_constant(row, c, c.phase)) for row, c in rates if c.phase]
    if said:
        spans = tuple((row, c, k) for row, c, k in said if k)
        return Reading("said", overlap([k for _, _, k in spans]) if spans else None, spans) if spans else None
    readings = []
    for phase in ("fwd_bwd", "fwd", "bwd"):
        spans = tuple((row, c, k) for row, c in rates if (k := row_constant(row, c, phase)))
        if spans:
            readings.append(Reading(phase, overlap([k for _, _, k in spans]), spans))
    sharing = [reading for reading in readings if reading.common and len(reading.spans) > 1]
    if sharing:
        return sharing[0]
    for reading in readings:  # one row alone shares K with itself; a shape said elsewhere decides
        if reading.common and any(holds(reading.common, s.constant) for s in shapes):
            return reading
    return Reading(None, None, readings[0].spans) if readings else None


def fits(common: tuple[float, float], first: Claim) -> list[str]:
    """Shapes near what was said that give K: one size changed, the rate per rank or of the whole machine."""
    heads, dim, world = first.num_heads_q, first.head_dim_known, first.world_known
    if heads is None or dim is None or world is None:
        return []
    masks = (True, False) if first.causal is None else (first.causal,)
    candidates = [(heads, d) for d in (dim, *COMMON_HEAD_DIMS)] + [(h, dim) for h in range(1, 129)]
    found = []
    for ranks, meaning in (
        (world, f"per rank of {world}"),
        (1, "of the whole machine, not divided by ranks"),
    ):
        for h, d in dict.fromkeys(candidates):
            for causal in masks:
                if holds(common, h * d * (0.5 if causal else 1.0) / ranks):
                    found.append(
                        f"{h} heads of {d}, {'causal' if causal else 'full attention'}, rate {meaning}"
                    )
    return found
