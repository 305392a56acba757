"""A claim held against the records: reproduced, not_reproduced, not_measured or not_comparable, and why.

Every result claim gets one verdict of kind `absolute`. Pairs of systems in one document get verdicts of kind
`ratio`: the machine's speed cancels, so they are compared across hardware, on equal numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ringmark.cell import option_text
from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.matching import Wanted, speakers, wanted
from ringmark.published.measured import Measured
from ringmark.published.ratio import Pair, pairs_of
from ringmark.published.rows import Row, span
from ringmark.published.tolerance import Tolerances


class Outcome(str, Enum):
    """What a verdict says."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    NOT_MEASURED = "not_measured"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True)
class Verdict:
    """One verdict; target, low and high are in `unit`, and `measured` is too, where it can be."""

    kind: str  # absolute, ratio
    claim: str
    subject: str
    seqlen_global: int | None
    phase: str | None
    outcome: Outcome
    reason: str
    target: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    measured: float | None = None
    measured_on: str | None = None
    records: str = ""


_Say = Callable[..., Verdict]
_Place = dict[str, object]


def verdicts(
    claims: Sequence[Claim], measured: Sequence[Measured], tolerances: Tolerances, device: str | None = None
) -> list[Verdict]:
    """A verdict for each result claim, then one for each pair; `device` names the hardware left unsaid."""
    corpus = Corpus(tuple(claims))
    row_of = {claim.id: row for row in corpus.rows for claim in row.claims}
    found = []
    for claim in claims:
        if claim.kind == "result":
            found.append(_absolute(corpus, row_of.get(claim.id), claim, measured, tolerances, device))
    return found + [_ratio(corpus, pair, measured, tolerances) for pair in pairs_of(corpus)]


def _absolute(
    corpus: Corpus,
    row: Row | None,
    claim: Claim,
    measured: Sequence[Measured],
    tolerances: Tolerances,
    device: str | None,
) -> Verdict:
    def say(outcome: Outcome, reason: str, **rest: object) -> Verdict:
        return Verdict(
            "absolute",
            claim.id,
            f"{claim.label or claim.item or '(unnamed)'}: {claim.metric}",
            claim.seqlen_global,
            corpus.phase(claim)[0],
            outcome,
            reason,
            **{"target": claim.value, "unit": claim.unit, **rest},  # type: ignore[arg-type]
        )

    if row is None:
        return say(Outcome.NOT_COMPARABLE, "a figure of the source's own profile; records hold none like it")
    asked = wanted(corpus, row, claim)
    if isinstance(asked, str):
        return say(Outcome.NOT_COMPARABLE, asked)
    if claim.metric == "rate" and corpus.contradicts_shape(row):
        return say(Outcome.NOT_COMPARABLE, "the rate does not follow from the printed shape (see the audit)")
    rows = speakers(asked, measured)
    if not rows:
        return say(Outcome.NOT_MEASURED, f"no record of {_cell(asked)} at this length, phase and shape")
    best, value = rows[0], _value(claim, rows[0])
    place: _Place = {"measured": value, "measured_on": best.where, "records": best.source}
    reason = _machine_differs(asked, claim, best, device)
    if reason:
        return say(Outcome.NOT_COMPARABLE, "; ".join((reason, *asked.notes)), **place)
    if claim.value is None:
        return _status(claim, best, say, place)
    if value is None:
        return _no_value(best, say, place)
    band = tolerances.of(claim.metric, claim.id).band(*span(claim)[::2])
    candidates = [(one, x) for one in rows if asked.same_ranks(one) and (x := _value(claim, one)) is not None]
    inside = [pair for pair in candidates if band[0] <= pair[1] <= band[1]]
    chosen, value = (inside or candidates)[0]
    outcome = Outcome.REPRODUCED if inside else Outcome.NOT_REPRODUCED
    reason = "; ".join((f"{value:.4g} against {claim.printed} {claim.unit}", *asked.notes))
    place = {"measured": value, "measured_on": chosen.where, "records": chosen.source}
    return say(outcome, reason, low=band[0], high=band[1], **place)


def _cell(asked: Wanted) -> str:
    options = "".join(f"+{key}={option_text(value)}" for key, value in asked.system.options.items())
    return f"{asked.system.method}{options}"


def _machine_differs(asked: Wanted, claim: Claim, row: Measured, device: str | None) -> str | None:
    """Why the machines cannot be compared, if they cannot."""
    named = claim.device or device
    if named is None:
        return "the source does not say its hardware"
    if _plain(named) not in _plain(row.device or ""):
        return f"other hardware: {named} there, {row.device or 'unknown'} here"
    if not asked.same_ranks(row):
        nodes = f" on {asked.nodes} nodes" if asked.nodes else ""
        return f"other ranks: {asked.world_size}{nodes} there, {row.nodes}x{row.gpus_per_node} here"
    return None


def _plain(name: str) -> str:
    return "".join(name.lower().split()).replace("-", "")


def _value(claim: Claim, row: Measured) -> float | None:
    """The measured row's figure in the claim's unit."""
    if row.time_ms is None:
        return None
    if claim.metric == "time":
        return row.time_ms / (1e3 if claim.unit == "s" else 1.0)
    if claim.metric == "throughput":
        return 1e3 / row.time_ms
    return row.tflops_per_gpu if claim.metric == "rate" else row.mem_peak_mib


def _status(claim: Claim, row: Measured, say: _Say, place: _Place) -> Verdict:
    if claim.status != "oom":
        return say(Outcome.NOT_COMPARABLE, f"{claim.printed!r} is not explained by the source", **place)
    outcome = Outcome.REPRODUCED if row.status == "oom" else Outcome.NOT_REPRODUCED
    return say(outcome, f"out of memory there, {row.status} here", **place)


def _no_value(row: Measured, say: _Say, place: _Place) -> Verdict:
    """A cell tried here that has no time: running out of memory counts, a missing library does not."""
    if row.status in ("oom", "unsupported", "wrong"):
        return say(Outcome.NOT_REPRODUCED, f"a number there, {row.status} here: {row.reason}", **place)
    return say(Outcome.NOT_MEASURED, f"the record is {row.status}: {row.reason}", **place)


def _ratio(corpus: Corpus, pair: Pair, measured: Sequence[Measured], tolerances: Tolerances) -> Verdict:
    def say(outcome: Outcome, reason: str, **rest: object) -> Verdict:
        return Verdict(
            "ratio",
            f"{pair.over.id} / {pair.under.id}",
            f"speed of {pair.over.label} over {pair.under.label}",
            pair.seqlen_global,
            pair.phase,
            outcome,
            reason,
            **{"target": pair.target, "unit": "ratio", **rest},  # type: ignore[arg-type]
        )

    over, under = wanted(corpus, pair.over_row, pair.over), wanted(corpus, pair.under_row, pair.under)
    if isinstance(over, str) or isinstance(under, str):
        return say(Outcome.NOT_COMPARABLE, over if isinstance(over, str) else str(under))
    both = [
        (a, b)
        for a in speakers(over, measured)
        for b in speakers(under, measured)
        if a.setting == b.setting and a.time_ms and b.time_ms
    ]
    if not both:
        missing = [_cell(one) for one in (over, under) if not any(r.time_ms for r in speakers(one, measured))]
        return say(
            Outcome.NOT_MEASURED,
            f"no time of {' nor of '.join(missing)} at this length, phase and shape"
            if missing
            else "no two records of one setting and kernel",
        )
    same = [(a, b) for a, b in both if over.same_ranks(a) and under.same_ranks(b)]
    ratios = [(b.time_ms / a.time_ms, a) for a, b in same or both if a.time_ms and b.time_ms]
    notes = tuple(dict.fromkeys((*over.notes, *under.notes)))
    if not same:
        value, row = ratios[0]
        ranks = over.world_size or under.world_size
        reason = f"a ratio on other ranks: {ranks} there, {row.nodes}x{row.gpus_per_node} here"
        return say(Outcome.NOT_COMPARABLE, reason, measured=value, measured_on=row.where)
    band = tolerances.of("ratio", pair.over.id).band(pair.low, pair.high)
    inside = [one for one in ratios if band[0] <= one[0] <= band[1]]
    value, row = (inside or ratios)[0]
    there = pair.over.device or "hardware unsaid"
    reason = "; ".join((f"compared as a ratio: {there} there, {row.where} here", *notes))
    outcome = Outcome.REPRODUCED if inside else Outcome.NOT_REPRODUCED
    return say(outcome, reason, low=band[0], high=band[1], measured=value, measured_on=row.where)
