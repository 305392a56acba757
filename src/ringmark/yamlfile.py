"""Every YAML file is read here: one that is none, or that gives a key twice, is told in one sentence."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ringmark.errors import UserError

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML as it is, but a key that is given twice is a mistake: the first value would go unheard."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line} gives the key {key.value!r} again; keep one of the two")
            seen.add(key.value)
        return node


def read(path: Path, what: str = "file") -> Any:
    """The plain data of a file; `what` names its kind in the sentence of an error."""
    try:
        return parse(path.read_bytes().decode("utf-8"), str(path))
    except OSError as error:
        raise UserError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: convert the file") from None


def parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        raise UserError(f"{where} is no valid YAML: {' '.join(str(error).split())}") from None


def packaged(name: str) -> Any:
    """The plain data of a file of the package, like data/tables.yaml."""
    return read(Path(str(resources.files("ringmark").joinpath(name))))
