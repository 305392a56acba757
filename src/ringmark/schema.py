"""One definition, three uses: a dataclass reads JSON or YAML, writes it, and prints its JSON Schema.

Config files and records are frozen dataclasses. `load` builds one from plain data and refuses what does not
fit, naming the place and the nearest valid key; `dump` is its inverse; `json_schema` describes it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from ringmark.errors import UserError, nearest

T = TypeVar("T")


def load(kind: type[T], data: object, where: str) -> T:
    """`data` as a `kind`; `where` names the file or place in the sentence of an error."""
    return typing.cast(T, _load(kind, data, where))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _load(kind: Any, data: object, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return data
    if origin in (typing.Union, types.UnionType):
        return _load_union(typing.get_args(kind), data, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _load_dataclass(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise UserError(
                f"{where}: {data!r} is not known; {nearest(str(data), [m.value for m in kind])}"
            ) from None
    if origin is typing.Literal:
        if data in typing.get_args(kind):
            return data
        raise UserError(
            f"{where}: {data!r} is not known; {nearest(str(data), map(str, typing.get_args(kind)))}"
        )
    if origin in (tuple, list, Sequence):
        item = typing.get_args(kind)[0]
        if not isinstance(data, (list, tuple)):
            raise UserError(f"{where} must be a list, not {data!r}")
        return tuple(_load(item, value, f"{where}[{i}]") for i, value in enumerate(data))
    if origin in (dict, Mapping):
        value_kind = typing.get_args(kind)[1]
        if not isinstance(data, dict):
            raise UserError(f"{where} must be a mapping, not {data!r}")
        return {str(key): _load(value_kind, value, f"{where}.{key}") for key, value in data.items()}
    return _load_scalar(kind, data, where)


def _load_scalar(kind: Any, data: object, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise UserError(f"{where} must be {_PLAIN.get(kind, kind.__name__)}, not {data!r}")


_PLAIN = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}


def _load_union(choices: tuple[Any, ...], data: object, where: str) -> Any:
    if data is None and type(None) in choices:
        return None
    real = [choice for choice in choices if choice is not type(None)]
    if len(real) == 1:
        return _load(real[0], data, where)
    for choice in real:
        try:
            return _load(choice, data, where)
        except UserError:
            continue
    plain = " or ".join(_PLAIN.get(choice, getattr(choice, "__name__", str(choice))) for choice in real)
    raise UserError(f"{where} must be {plain}, not {data!r}")


def _load_dataclass(kind: type, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise UserError(f"{where} must be a mapping with keys, not {data!r}")
    hints, known = _hints(kind), {field.name: field for field in _fields(kind)}
    for key in data:
        if key not in known:
            raise UserError(f"{where} has an unknown key {str(key)!r}: {nearest(str(key), known)}")
    values = {}
    for name, field in known.items():
        if name in data:
            values[name] = _load(hints[name], data[name], f"{where}.{name}" if where else name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{where} lacks the key {name!r}: add it")
    try:
        return kind(**values)
    except ValueError as error:  # a dataclass's own law, told in its words
        raise UserError(f"{where}: {error}") from None


def dump(value: Any) -> Any:
    """Plain data (dict, list, str, number, bool, None) that `load` turns back into an equal value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: dump(getattr(value, field.name)) for field in _fields(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    return value


def json_schema(kind: type, title: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `load(kind, ...)` accepts."""
    definitions: dict[str, Any] = {}
    body = _schema(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **body,
        "$defs": definitions,
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(choice, definitions) for choice in args]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _schema_of_dataclass(kind, definitions)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    names = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
    return {"type": names[kind]}


def _schema_of_dataclass(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # set first: a definition may mention itself
        hints, required, properties = _hints(kind), [], {}
        for field in _fields(kind):
            properties[field.name] = _schema(hints[field.name], definitions)
            if "help" in field.metadata:
                properties[field.name]["description"] = field.metadata["help"]
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.append(field.name)
        definitions[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").split("\n")[0],
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
