"""Which numbers are printed with so few digits that they cannot carry a comparison?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, note
from ringmark.published.rows import span

TITLE = "digits printed"
_COARSE = 0.01


def check(corpus: Corpus) -> Iterator[Finding]:
    groups: dict[tuple[str, str | None], list[Claim]] = defaultdict(list)
    for row in corpus.rows:
        for claim in row.claims:
            if claim.metric in ("time", "rate") and claim.value and span(claim).relative_half_width > _COARSE:
                groups[claim.source_file, claim.unit].append(claim)
    for (_, unit), claims in groups.items():
        worst = max(claims, key=lambda c: span(c).relative_half_width)
        shown = span(worst)
        yield note(
            f"{len(claims)} numbers in {unit} are printed to no better than {100 * _COARSE:g}%",
            [claim.where for claim in claims],
            f"the coarsest, {worst.printed} {unit} ({worst.where}), stands for {shown.low:g} to "
            f"{shown.high:g}: "
            f"±{100 * shown.relative_half_width:.0f}%",
        )
