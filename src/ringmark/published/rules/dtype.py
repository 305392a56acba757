"""Do the kernels' names betray another dtype than the one printed?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction
from ringmark.published.profile import ProfileRow, profiles_of

TITLE = "dtype against the kernels' names"
_TYPES = (("bf16", re.compile(r"bfloat16|bf16", re.I)), ("fp16", re.compile(r"half_t|c10::Half|fp16", re.I)))


def check(corpus: Corpus) -> Iterator[Finding]:
    for profile in profiles_of(corpus.claims):
        source = profile.rows[0].first.source_file
        printed = {c.dtype: c.where for c in corpus.claims if c.source_file == source and c.dtype}
        seen: dict[str, list[ProfileRow]] = {}
        for row in profile.rows:
            for name, pattern in _TYPES:
                if pattern.search(row.item):
                    seen.setdefault(name, []).append(row)
        for name, rows in seen.items():
            if printed and name not in printed:
                yield contradiction(
                    f"kernels compute in {name}, the document prints {' and '.join(printed)}",
                    [*(row.where for row in rows), *printed.values()],
                    "; ".join(row.item for row in rows),
                )
