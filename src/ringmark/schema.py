"""One definition, three uses: a dataclass reads JSON or YAML, writes it, and prints its JSON Schema.

Config files and records are frozen dataclasses. `load` builds one from plain data and refuses what does not
fit, naming the place and the nearest valid key; `dump` is its inverse; `json_schema` describes it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from ringmark.errors import UserError, nearest

T = TypeVar("T")


def load(kind: type[T], data: object, where: str) -> T:
    """`data` as a `kind`; `where` names the file or place in the sentence of an error."""
    try:
        return typing.cast(T, _loader(typing.cast(Any, kind))(data))
    except _MisfitError as misfit:
        place = f"{where}{misfit.place}" if where else misfit.place.lstrip(".")
        raise UserError(place + misfit.sentence) from None


class _MisfitError(Exception):
    """Data that does not fit: the sentence, and the place, written as the error climbs out (so that
    loading what does fit, ten thousand records of it, never writes a place down)."""

    def __init__(self, sentence: str) -> None:
        self.sentence, self.place = sentence, ""

    def within(self, step: str) -> _MisfitError:
        self.place = step + self.place
        return self


_Loader = Callable[[Any], Any]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


@cache
def _loader(kind: Any) -> _Loader:
    """The function that loads a `kind`, made once for each."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda data: data
    if origin in (typing.Union, types.UnionType):
        return _union_loader(args)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_loader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice_loader({member.value: member for member in kind})
    if origin is typing.Literal:
        return _choice_loader({value: value for value in args})
    if origin in (tuple, list, Sequence):
        return _list_loader(args[0], tuple if origin is tuple else list)
    if origin in (dict, Mapping):
        return _mapping_loader(args[1])
    return _scalar_loader(kind)


def _choice_loader(choices: dict[Any, Any]) -> _Loader:
    def load_choice(data: Any) -> Any:
        try:
            return choices[data]
        except (KeyError, TypeError):  # TypeError: a list or mapping, which is no choice either
            known = nearest(str(data), map(str, choices))
            raise _MisfitError(f": {data!r} is not known; {known}") from None

    return load_choice


def _list_loader(item: Any, made: Callable[[Any], Any]) -> _Loader:
    load_item = _loader(item)

    def load_list(data: Any) -> Any:
        if not isinstance(data, (list, tuple)):
            raise _MisfitError(f" must be a list, not {data!r}")
        if item is float and set(map(type, data)) == {float}:  # a rank's samples: the bulk of a record
            return made(data)
        loaded = []
        try:
            for value in data:
                loaded.append(load_item(value))
        except _MisfitError as misfit:
            raise misfit.within(f"[{len(loaded)}]") from None
        return made(loaded)

    return load_list


def _mapping_loader(value_kind: Any) -> _Loader:
    load_value = _loader(value_kind)

    def load_mapping(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _MisfitError(f" must be a mapping, not {data!r}")
        loaded = {}
        for key, value in data.items():
            if not isinstance(key, str):  # YAML's own: ON and NO mean true and false
                raise _MisfitError(f" has the key {key!r}, which is no text: put it in quotes")
            try:
                loaded[key] = load_value(value)
            except _MisfitError as misfit:
                raise misfit.within(f".{key}") from None
        return loaded

    return load_mapping


def _scalar_loader(kind: Any) -> _Loader:
    def load_scalar(data: Any) -> Any:
        if kind is float and isinstance(data, float) and not math.isfinite(data):
            raise _MisfitError(f" must be a finite number, not {data!r}")
        if type(data) is kind:
            return data
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
            return data
        # To YAML on, off, yes and no are true and false, 2026-01-01 is a date and 1.10 a number.
        is_word = kind is str and not isinstance(data, (dict, list, type(None)))
        advice = ": put it in quotes" if is_word else ""
        raise _MisfitError(f" must be {_PLAIN.get(kind, kind.__name__)}, not {data!r}{advice}")

    return load_scalar


_PLAIN = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}


def _union_loader(choices: tuple[Any, ...]) -> _Loader:
    nullable = type(None) in choices
    real = [choice for choice in choices if choice is not type(None)]
    loaders = [_loader(choice) for choice in real]
    plain = " or ".join(_PLAIN.get(choice, getattr(choice, "__name__", str(choice))) for choice in real)

    def load_union(data: Any) -> Any:
        if data is None and nullable:
            return None
        if len(loaders) == 1:
            return loaders[0](data)
        for loader in loaders:
            try:
                return loader(data)
            except _MisfitError:
                continue
        raise _MisfitError(f" must be {plain}, not {data!r}")

    return load_union


def _dataclass_loader(kind: type) -> _Loader:
    known = {field.name for field in _fields(kind)}
    needed = [
        field.name
        for field in _fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    loaders: dict[str, _Loader] = {}

    def load_dataclass(data: Any) -> Any:
        if not loaders:  # at the first use: a definition may mention itself
            loaders.update({name: _loader(_hints(kind)[name]) for name in known})
        if not isinstance(data, dict):
            raise _MisfitError(f" must be a mapping with keys, not {data!r}")
        for key in data:
            if key not in known:
                raise _MisfitError(f" has an unknown key {str(key)!r}: {nearest(str(key), known)}")
        values = {}
        for name, value in data.items():
            try:
                values[name] = loaders[name](value)
            except _MisfitError as misfit:
                raise misfit.within(f".{name}") from None
        for name in needed:
            if name not in values:
                raise _MisfitError(f" lacks the key {name!r}: add it")
        try:
            return kind(**values)
        except (ValueError, UserError) as error:  # a dataclass's own law, told in its words
            raise _MisfitError(f": {error}") from None

    return load_dataclass


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
