"""Is a row faster than its neighbours, or than the attention kernel alone, make plausible?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.flops import attention_flops, tflops_per_gpu
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, note, suspect
from ringmark.published.fit import Shape
from ringmark.published.profile import Profile, profiles_of
from ringmark.published.rows import Row

TITLE = "faster than other rows make plausible"
_FASTER = 0.15
_ABOVE_NOTE, _ABOVE_SUSPECT = 0.0, 0.05


def check(corpus: Corpus) -> Iterator[Finding]:
    for name in corpus.files:
        yield from _neighbours(corpus, [row for row in corpus.rows if row.first.source_file == name])
    for profile in profiles_of(corpus.claims):
        yield from _kernel_bound(corpus, profile)


def _neighbours(corpus: Corpus, rows: list[Row]) -> Iterator[Finding]:
    """Times well under the next system's at the same length, in one document."""
    groups: dict[tuple[object, ...], list[tuple[float, Row]]] = defaultdict(list)
    for row in rows:
        for phase in ("fwd", "fwd_bwd"):
            time = corpus.fine_time_ms(row, phase)
            if time:
                degree = tuple(row.first.options.get(key) for key in ("ulysses_degree", "ring_degree"))
                groups[phase, row.seqlen_global, row.first.batch, degree].append((time, row))
    faster: dict[tuple[str, str], list[tuple[Row, Row, str]]] = defaultdict(list)
    for (key_phase, seqlen, *_), timed in groups.items():
        timed.sort(key=lambda pair: pair[0])
        (best, row), others = (
            timed[0],
            [pair for pair in timed if pair[1].first.system != timed[0][1].first.system],
        )
        if len({each.first.system for _, each in others}) < 2:
            continue  # with one neighbour alone, neither is the odd one
        second, next_row = others[0]
        if second / best - 1 > _FASTER:
            less = 100 * (1 - best / second)
            text = f"S = {seqlen}: {best:.6g} ms against {second:.6g} ms ({next_row.name}), {less:.0f}% less"
            faster[row.name, str(key_phase)].append((row, next_row, text))
    for (name, of_phase), found in faster.items():
        yield suspect(
            f"{name}, {of_phase}: clearly less time than the next system of the document",
            list(dict.fromkeys(place for pair in found for row in pair[:2] for place in row.where)),
            "; ".join(text for _, _, text in found)
            + ". The attention kernel's part of the time is common to all, if heads and head size are",
        )


def _kernel_bound(corpus: Corpus, profile: Profile) -> Iterator[Finding]:
    """The forward kernel's own time per call, over all ring steps, is the least a forward can take."""
    source = profile.rows[0].first.source_file
    owner = next(
        (row for row in corpus.rows if row.first.source_file == source and row.first.world_known), None
    )
    rows = profile.family("attention forward")
    calls, shape = sum(row.calls for row in rows), next((s for s in corpus.shapes if source in s.where), None)
    if owner is None or shape is None or not calls:
        return
    total = sum(time.mid for row in rows if (time := row.ms("self_cuda_time")))
    bound_ms = total / calls * shape.world_size
    bound = tflops_per_gpu(_flops(owner, shape), bound_ms, shape.world_size)
    basis = (
        f"the profile's forward kernel: {total:.6g} ms / {calls} calls × {shape.world_size} steps = "
        f"{bound_ms:.1f} ms, "
        f"{bound:.1f} TFLOP/s per GPU with nothing else on the clock"
    )
    for row in corpus.rows:
        if row.seqlen_global == owner.seqlen_global and row.first.batch == owner.first.batch and row != owner:
            yield from _against_bound(row, shape, bound, basis, rows[0].where)


def _against_bound(row: Row, shape: Shape, bound: float, basis: str, place: str) -> Iterator[Finding]:
    time, claim = row.time_ms("fwd"), row.find("rate", "fwd")
    if row.first.device is not None or (time is None and claim is None):
        return
    if claim is not None and claim.value is not None:
        rate, text, where = claim.value, f"printed {claim.printed} TFLOP/s", claim.where
    elif time is not None and time.mid > 0:
        rate = tflops_per_gpu(_flops(row, shape), time.mid, shape.world_size)
        text, where = f"{time.mid:g} ms is {rate:.1f} TFLOP/s if the shape is {shape}", row.where[0]
    if rate / bound - 1 > _ABOVE_NOTE:
        yield (suspect if rate / bound - 1 > _ABOVE_SUSPECT else note)(
            f"{row.name}, S = {row.seqlen_global}: forward runs {100 * (rate / bound - 1):.1f}% above "
            "what the "
            "profiled attention kernel alone reaches at this length",
            [where, place],
            f"{text}; {basis}. Other hardware, another kernel version or fewer heads per longer block "
            "may explain it; "
            "the sources do not say",
        )


def _flops(row: Row, shape: Shape) -> float:
    return attention_flops(
        batch=row.first.batch or 1,
        seqlen_global=row.seqlen_global,
        num_heads_q=shape.num_heads_q,
        head_dim=shape.head_dim,
        causal=shape.causal,
        phase="fwd",
    )
