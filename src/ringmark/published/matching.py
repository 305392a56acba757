"""Which measured rows speak to a claim: same method, length, phase and shape, as far as they are said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.measured import Measured
from ringmark.published.rows import Row
from ringmark.published.systems import System, by_name


@dataclass(frozen=True)
class Wanted:
    """A claim's coordinates; None where the source leaves one unsaid and no fit supplies it."""

    system: System
    seqlen_global: int
    phase: str
    batch: int | None
    num_heads_q: int | None
    head_dim: int | None
    causal: bool | None
    dtype: str | None
    world_size: int | None
    nodes: int | None
    notes: tuple[str, ...]  # how the unsaid ones were filled, or that they were not

    def covers(self, row: Measured) -> bool:
        """Same method and problem; the machine is judged apart."""
        options = {key: str(value).lower() for key, value in self.system.options.items()}
        pairs = (
            (self.batch, row.batch),
            (self.num_heads_q, row.num_heads_q),
            (self.head_dim, row.head_dim),
            (self.causal, row.causal),
            (self.dtype, row.dtype),
        )
        return (
            (row.method, row.seqlen_global, row.phase) == (self.system.method, self.seqlen_global, self.phase)
            and all(row.options.get(key) == value for key, value in options.items())
            and all(said is None or said == measured for said, measured in pairs)
        )

    def same_ranks(self, row: Measured) -> bool:
        return (self.world_size in (None, row.world_size)) and (self.nodes in (None, row.nodes))


def wanted(corpus: Corpus, row: Row, claim: Claim) -> Wanted | str:
    """The coordinates that a record must have, or the reason why none can be named."""
    system, first = by_name(claim.system), row.first
    if system is None:
        return f"{row.name!r} names no system that ringmark knows"
    phase, how = corpus.phase(claim)
    if phase is None:
        return "the source does not say whether this is forward or forward + backward"
    if phase == "bwd":
        return "records hold forward, and forward + backward; backward alone is derived, not measured"
    notes = [] if how == "said" else [f"phase unsaid; {how}"]
    heads, dim, causal, world = first.num_heads_q, first.head_dim_known, first.causal, first.world_known
    fitted = corpus.fitted_shape(row)
    if fitted is not None and None in (heads, dim, causal, world):
        notes.append(f"shape unsaid in part; rate and time agree with {fitted}")
        heads, dim, causal, world = (
            fitted.num_heads_q if heads is None else heads,
            fitted.head_dim if dim is None else dim,
            fitted.causal if causal is None else causal,
            fitted.world_size if world is None else world,
        )
    named = {"heads": heads, "head size": dim, "mask": causal, "dtype": first.dtype, "ranks": world}
    unsaid = [name for name, value in named.items() if value is None]
    if unsaid:
        notes.append(f"unsaid and taken as measured: {', '.join(unsaid)}")
    return Wanted(
        system=system,
        seqlen_global=row.seqlen_global,
        phase=phase,
        batch=first.batch,
        num_heads_q=heads,
        head_dim=dim,
        causal=causal,
        dtype=first.dtype,
        world_size=world,
        nodes=first.nodes,
        notes=tuple(notes),
    )


def speakers(asked: Wanted, measured: Sequence[Measured]) -> list[Measured]:
    """The measured rows that the claim speaks of, those on as many ranks first."""
    found = [row for row in measured if asked.covers(row)]
    return sorted(found, key=lambda row: (not asked.same_ranks(row), row.time_ms is None))
