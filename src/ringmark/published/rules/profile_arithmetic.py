"""Does a profiler table agree with itself: averages, shares, sums, and calls per ring step?"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note
from ringmark.published.profile import FAMILIES, Profile, ProfileRow, profiles_of
from ringmark.published.rows import Span

TITLE = "a profile's own arithmetic"
_PARTS = (
    ("cuda_total_time", "cuda_time_avg", "self_cuda_time", "self_cuda_share", "self_cuda_time_total"),
    ("cpu_total_time", "cpu_time_avg", "self_cpu_time", "self_cpu_share", "self_cpu_time_total"),
)


def check(corpus: Corpus) -> Iterator[Finding]:
    worlds = {row.first.source_file: row.first.world_known for row in corpus.rows if row.first.world_known}
    for profile in profiles_of(corpus.claims):
        for total, average, own, share, whole in _PARTS:
            yield from _rows(profile, total, average, own, share, whole)
        yield from _calls(profile, worlds.get(profile.rows[0].first.source_file))


def _apart(a: Span, b: Span) -> bool:
    return a.high < b.low or b.high < a.low


def _rows(profile: Profile, total: str, average: str, own: str, share: str, whole: str) -> Iterator[Finding]:
    whole_claim = profile.totals.get(whole)
    whole_ms = ProfileRow({whole: whole_claim}).ms(whole) if whole_claim else None
    summed = Span(0.0, 0.0, 0.0)
    for row in profile.rows:
        time, mean, self_ms, printed = row.ms(total), row.ms(average), row.ms(own), row.number(share)
        if time and mean and row.calls:
            each = Span(*(value / row.calls for value in time))
            if _apart(each, mean):
                yield contradiction(
                    f"{row.item[:50]}: the average is not the total over the calls",
                    [row.where],
                    f"{time.mid:g} ms / {row.calls} = {each.mid:.6g} ms, printed {mean.mid:g} ms",
                )
        if self_ms:
            summed = Span(*(x + y for x, y in zip(summed, self_ms)))
        if self_ms and printed and whole_ms:
            percent = Span(
                100 * self_ms.low / whole_ms.high,
                100 * self_ms.mid / whole_ms.mid,
                100 * self_ms.high / whole_ms.low,
            )
            if _apart(percent, printed):
                yield contradiction(
                    f"{row.item[:50]}: the share is not the time over the total",
                    [row.where],
                    f"{self_ms.mid:g} / {whole_ms.mid:g} ms = {percent.mid:.3f}%, printed {printed.mid:g}%",
                )
    if whole_ms and whole_claim and summed.low > whole_ms.high:
        yield contradiction(
            "the rows of the profile sum to more than its total",
            [profile.where, whole_claim.where],
            f"sum {summed.mid:.6g} ms, total {whole_ms.mid:.6g} ms",
        )


def _calls(profile: Profile, world_size: int | None) -> Iterator[Finding]:
    """One attention call per ring step: forward's calls and backward's are whole multiples of the ranks."""
    calls = {name: sum(row.calls for row in profile.family(name)) for name in FAMILIES}
    counts = {name: number for name, number in calls.items() if number}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name}: {number}" for name, number in counts.items())
        if world_size and world_size > 1:
            text += (
                "; in steps of a ring of "
                + f"{world_size}: "
                + ", ".join(f"{number / world_size:g}" for number in counts.values())
            )
        yield note(
            "attention's forward and backward kernels were not called equally often",
            [row.where for name in counts for row in profile.family(name)],
            text
            + ". An iteration calls each once per step, so the profiled window begins or ends within one, "
            "and sums over the window are not whole iterations",
        )
