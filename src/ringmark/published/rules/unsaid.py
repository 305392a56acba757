"""What does a source leave unsaid that a comparison or a reproduction needs?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, note
from ringmark.published.rows import Row, Table

TITLE = "what is left unsaid"


def check(corpus: Corpus) -> Iterator[Finding]:
    groups: dict[tuple[str, tuple[str, ...]], list[Table]] = defaultdict(list)
    for table in corpus.tables:
        missing = _missing(table.rows[0])
        if missing:
            groups[table.rows[0].first.source_file, missing].append(table)
    for (_, missing), tables in groups.items():
        names = dict.fromkeys(table.name for table in tables)
        yield note(
            f"{'; '.join(names)}: unsaid are {', '.join(missing)}",
            [table.where for table in tables],
            "no text of the source gives them for these rows; ringmark records them as null",
        )
    yield from _hosts(corpus)


def _missing(row: Row) -> tuple[str, ...]:
    first = row.first
    needed = {
        "device": first.device,
        "world size": first.world_known,
        "heads": first.num_heads_q,
        "head size": first.head_dim_known,
        "mask": first.causal,
        "dtype": first.dtype,
    }
    phases = [c.phase for c in row.claims if c.metric == "rate"]
    if phases and None in phases:
        needed["phase of the rate"] = None
    return tuple(name for name, value in needed.items() if value is None)


def _hosts(corpus: Corpus) -> Iterator[Finding]:
    for name in corpus.files:
        hosts: dict[str, list[str]] = defaultdict(list)
        for table in corpus.tables:
            first = table.rows[0].first
            if first.source_file == name and first.log_host:
                hosts[first.log_host].append(table.where)
        if len(hosts) > 1:
            yield note(
                "one document's tables were printed by different hosts",
                [where for places in hosts.values() for where in places],
                "; ".join(f"{host}: {', '.join(places)}" for host, places in hosts.items())
                + ": whether the runs shared nodes and links is not said",
            )
