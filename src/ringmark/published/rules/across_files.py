"""Does the same system, at the same length and phase, print the same number everywhere?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, note, suspect
from ringmark.published.systems import by_name

TITLE = "one label, several values; one value, several labels"
_NOTE, _SUSPECT = 0.03, 0.15


def check(corpus: Corpus) -> Iterator[Finding]:
    yield from _same_label(corpus)
    yield from _same_value(corpus)


def _same_label(corpus: Corpus) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[Claim]] = defaultdict(list)
    for row in corpus.rows:
        for claim in row.claims:
            system, (phase, _) = by_name(claim.system), corpus.phase(claim)
            if claim.metric == "rate" and claim.value and system and phase:
                groups[system.method, claim.seqlen_global, phase].append(claim)
    for (_, seqlen, of_phase), claims in groups.items():
        if len({claim.source_file for claim in claims}) < 2 or _placements(claims) > 1:
            continue
        low, high = min(claims, key=lambda c: c.value or 0.0), max(claims, key=lambda c: c.value or 0.0)
        spread = (high.value or 0.0) / (low.value or 1.0) - 1
        if spread > _NOTE:
            unsaid = sorted({how for c in claims if (how := corpus.phase(c)[1]) != "said"})
            yield (suspect if spread > _SUSPECT else note)(
                f"{' and '.join(dict.fromkeys(str(c.label) for c in claims))}, S = {seqlen}, {of_phase}: "
                "rates of one system "
                f"apart by {100 * spread:.0f}%",
                [claim.where for claim in claims],
                ", ".join(f"{c.printed} ({c.label}, printed by {c.log_host or 'a page'})" for c in claims)
                + f": {high.printed} / {low.printed} = {1 + spread:.3f}"
                + "".join(f"; phase unsaid, but {how}" for how in unsaid),
            )


def _placements(claims: list[Claim]) -> int:
    """How many different systems are said (one that leaves its placement unsaid may be either)."""
    options = [system.options for c in claims if (system := by_name(c.system)) and system.options]
    return len({tuple(sorted(each.items())) for each in options})


def _same_value(corpus: Corpus) -> Iterator[Finding]:
    """Times are printed with five digits or so: two systems do not share one by chance."""
    groups: dict[tuple[object, ...], list[Claim]] = defaultdict(list)
    for row in corpus.rows:
        for claim in row.claims:
            digits = len(claim.printed.replace(".", "").lstrip("0"))
            if claim.metric == "time" and claim.value and digits >= 5 and claim.system:
                groups[claim.printed, claim.unit, claim.phase].append(claim)
    for claims in groups.values():
        if len({(claim.system, tuple(claim.options.items())) for claim in claims}) > 1:
            yield suspect(
                f"the same time under {' and '.join(dict.fromkeys(str(c.label) for c in claims))}",
                [claim.where for claim in claims],
                f"{claims[0].printed} {claims[0].unit} in each: equal to the last of its digits",
            )
