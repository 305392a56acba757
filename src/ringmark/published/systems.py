"""The same name for the same system: published labels, and the ringmark method each is held against."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from ringmark import schema, yamlfile


@dataclass(frozen=True)
class System:
    """One line of data/published_systems.yaml."""

    match: str
    system: str
    method: str
    options: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def known() -> tuple[System, ...]:
    rows = yamlfile.packaged("data/published_systems.yaml")["systems"]
    return tuple(schema.load(System, row, f"published_systems[{i}]") for i, row in enumerate(rows))


def by_label(label: str | None) -> System | None:
    """The system that a printed label names, or None: an unknown name is left unknown."""
    if label is None:
        return None
    plain = " ".join(label.lower().split())
    return next((each for each in known() if re.search(each.match, plain)), None)


def by_name(system: str | None) -> System | None:
    return next((each for each in known() if each.system == system), None)
