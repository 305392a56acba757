"""Do the shares that a report prints follow from the profile that it prints them with?"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note
from ringmark.published.profile import Profile, ProfileRow, profiles_of

TITLE = "printed shares against the profile's rows"
_ITEM_PARTS = {
    "flashattention kernel": "flash",
    "flash": "flash",
    "ringcomm": "sendrecv",
    "sendrecv": "sendrecv",
}
_PERCENT_ROUNDING = 0.005


def check(corpus: Corpus) -> Iterator[Finding]:
    for profile in profiles_of(corpus.claims):
        name = profile.rows[0].first.source_file
        claims = [c for c in corpus.claims if c.source_file == name and c.value is not None]
        for claim in claims:
            if claim.metric == "share":
                yield from _share(profile, claim, [c for c in claims if c.metric == "listed_share"])
        yield from _list(profile, [c for c in claims if c.format == "kernel_list"])


def _matching(profile: Profile, item: str | None) -> list[ProfileRow]:
    part = _ITEM_PARTS.get((item or "").lower())
    rows = [row for row in profile.rows if part and part in row.item.lower()]
    return [row for row in rows if (ms := row.ms("self_cuda_time")) and ms.mid > 0]


def _share(profile: Profile, claim: Claim, listed: list[Claim]) -> Iterator[Finding]:
    rows = _matching(profile, claim.item)
    percents = [row.number("self_cuda_share") for row in rows]
    found = sum(each.mid for each in percents if each)
    slack = _PERCENT_ROUNDING * (len(rows) + 1)
    if not rows or claim.value is None or abs(found - claim.value) <= slack:
        return
    added = " + ".join(f"{each.mid:.2f}" for each in percents if each)
    text = (
        f"rows of the profile: {added}{f' = {found:.2f}' if len(rows) > 1 else ''}%, printed {claim.printed}%"
    )
    part = _ITEM_PARTS[(claim.item or "").lower()]
    same = [c.value or 0.0 for c in listed if _ITEM_PARTS.get((c.item or "").lower()) == part]
    if same and abs(sum(same) - claim.value) <= _PERCENT_ROUNDING:
        text += (
            f"; the list in the same log holds {' + '.join(f'{x:g}' for x in same)} = {sum(same):.4f}, a "
            "fraction: "
            f"{100 * sum(same):.2f}%, so the printed figure is a fraction under a % sign, over "
            f"{len(same)} of the {len(rows)} rows"
        )
    yield contradiction(
        f"{claim.item}: the report prints {claim.printed}%, its profile's rows sum to {found:.2f}%",
        [claim.where, *(row.where for row in rows)],
        text,
    )


def _list(profile: Profile, listed: list[Claim]) -> Iterator[Finding]:
    """The rows that a list of kernel times picked, and those it left out."""
    times = [c for c in listed if c.metric == "listed_time"]
    if not listed:
        return
    rows = [row for item in ("flash", "sendrecv") for row in _matching(profile, item)]
    picked = [row for row in rows if any(_is_listed(row, c.value or 0.0) for c in times)]
    left = [row for row in rows if row not in picked]
    if not left:
        return
    units = {row.claims["self_cuda_time"].unit for row in picked}
    dropped = {row.claims["self_cuda_time"].unit for row in left}
    yield note(
        f"the list of kernel times holds {len(picked)} of the profile's {len(rows)} attention and "
        "transfer rows",
        [listed[0].where, *(row.where for row in left)],
        "left out: "
        + ", ".join(_short(row) for row in left)
        + (
            f". Every row listed is in {'/'.join(map(str, sorted(map(str, units))))}, every row left out in "
            f"{'/'.join(sorted(map(str, dropped)))}: the unit decided"
            if not units & dropped
            else ""
        ),
    )


def _is_listed(row: ProfileRow, listed_ms: float) -> bool:
    time = row.ms("self_cuda_time")
    return time is not None and time.low <= listed_ms <= time.high


def _short(row: ProfileRow) -> str:
    claim = row.claims["self_cuda_time"]
    name = row.item.removeprefix("void ").split("<")[0].split("(")[0]
    return f"{name} {claim.printed}{claim.unit}"
