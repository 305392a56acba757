"""Is a rate above what the named device can do, so that it cannot be a rate of one device?"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.flops import Peak, peak_tflops
from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction

TITLE = "a rate against the device's peak"


def check(corpus: Corpus) -> Iterator[Finding]:
    for name in corpus.files:
        above: list[tuple[Claim, Peak]] = []
        for claim in corpus.claims:
            if claim.source_file == name and claim.metric == "rate" and claim.value and claim.device:
                peak = peak_tflops(claim.device, claim.dtype or "bf16")
                if peak is not None and claim.value > peak.tflops:
                    above.append((claim, peak))
        if above:
            yield _finding(above)


def _finding(above: list[tuple[Claim, Peak]]) -> Finding:
    highest, peak = max(above, key=lambda pair: pair[0].value or 0.0)
    value, world = highest.value or 0.0, highest.world_known
    text = (
        f"the highest is {highest.printed} {highest.unit} ({highest.where}); one {peak.device} does at most "
        f"{peak.tflops:g} TFLOP/s in {peak.dtype} ({peak.source})"
    )
    if world and value / world <= peak.tflops:
        text += f"; over {world} devices it is {value / world:.1f} each, which can be"
    return contradiction(
        f"{len(above)} rates in {highest.unit} are above the peak of one {peak.device}, and the unit "
        "names no sum",
        [claim.where for claim, _ in above],
        text,
    )
