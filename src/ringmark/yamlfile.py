"""Every YAML file is read here: what is no YAML, or reads as something else than stands there, is told."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ringmark.errors import UserError

_MERGE = "tag:yaml.org,2002:merge"


class _MisleadingError(Exception):
    """What YAML reads as another number than stands there: the sentence, without the file."""


class _Loader(yaml.SafeLoader):
    """YAML as it is, but a key that is given twice is a mistake: the first value would go unheard.

    So is a number that means another one to YAML 1.1: 0512 is octal there, and 4:00:00 counts in sixties.
    """

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

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        is_int = node.tag.endswith(":int")
        number = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
        if ":" in node.value or (is_int and re.match(r"[-+]?0[0-9_]", node.value)):
            raise _MisleadingError(
                f"line {node.start_mark.line + 1} has {node.value}, which YAML reads as {number}: write the "
                "number that is meant, or quotes around a text"
            )
        return number


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


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
    except _MisleadingError as error:
        raise UserError(f"{where} {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        raise UserError(f"{where} is no valid YAML: {' '.join(str(error).split())}") from None


def packaged(name: str) -> Any:
    """The plain data of a file of the package, like data/tables.yaml."""
    return read(Path(str(resources.files("ringmark").joinpath(name))))
