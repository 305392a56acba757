"""Can the method run the shape that the row names: heads by degree, length by ranks, degrees by ranks?"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction
from ringmark.published.rows import Row

TITLE = "shapes that a method can run"


def check(corpus: Corpus) -> Iterator[Finding]:
    for row in corpus.rows:
        for what, text in _broken(row):
            yield contradiction(f"{row.name}, S = {row.seqlen_global}: {what}", row.where, text)


def _broken(row: Row) -> Iterator[tuple[str, str]]:
    first = row.first
    degree, ring = _number(row, "ulysses_degree"), _number(row, "ring_degree")
    world, heads = first.world_known, first.num_heads_q
    if degree and heads and heads % degree:
        yield (
            "the heads cannot be shared out",
            f"{heads} heads over an all-to-all of {degree} leave {heads % degree}",
        )
    if degree and ring and world and degree * ring != world:
        yield "the degrees do not make the ranks", f"{degree} × {ring} = {degree * ring}, not {world}"
    if world and row.seqlen_global % world:
        yield (
            "the length cannot be shared out",
            f"{row.seqlen_global} tokens over {world} ranks are no whole number",
        )
    zigzag = "zigzag" in (first.system or "") or "zigzag" in (first.label or "").lower()
    parts = 2 * (ring or world or 0)
    if zigzag and parts and row.seqlen_global % parts:
        yield (
            "zigzag needs two half-blocks per ring rank",
            f"{row.seqlen_global} tokens over {parts} half-blocks",
        )
    groups = first.num_heads_kv
    if groups and heads and heads % groups:
        yield "the heads are no multiple of the key-value heads", f"{heads} over {groups}"
    if first.hidden_size and heads and first.hidden_size % heads:
        yield "the hidden size is no multiple of the heads", f"{first.hidden_size} over {heads}"


def _number(row: Row, option: str) -> int | None:
    text = row.first.options.get(option, "")
    return int(text) if text.isdecimal() else None
