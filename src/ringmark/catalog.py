"""What methods, peers and kernels there are: the files of three folders, read without importing torch."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from ringmark.errors import nearest
from ringmark.options import Options

_PACKAGE = Path(__file__).parent
_CONTRACT = ("ringmark.methods.base", "Method")  # above it no class has options


def _files(folder: str) -> list[str]:
    stems = (path.stem for path in (_PACKAGE / folder).glob("*.py"))
    return sorted(stem for stem in stems if not stem.startswith("_") and stem != "base")


def native_names() -> list[str]:
    """Our own methods, by name."""
    return _files("methods")


def peer_names() -> list[str]:
    """Adapters to other people's implementations, by name."""
    return _files("peers")


def method_names() -> list[str]:
    """All that a cell can name: our own methods, then the peers."""
    return [*native_names(), *peer_names()]


@cache
def kernel_names() -> list[str]:
    """The local kernels, by name: the files that offer a KERNEL."""
    return [name for name in _files("kernels") if re.search(r"^KERNEL\b.*=", _text("kernels", name), re.M)]


def unknown_kernel(kernel: str) -> str | None:
    """What to say where a cell asks for a kernel that is none, or None."""
    known = ["auto", *kernel_names()]
    return None if kernel in known else f"there is no kernel {kernel!r}: {nearest(kernel, known)}"


@cache
def options(method: str) -> Options | None:
    """The options of a method or peer as its file states them; None where they are no literals there."""
    folder = "methods" if method in native_names() else "peers"
    try:
        return _options_of(f"ringmark.{folder}.{method}", "Method")
    except (ValueError, SyntaxError, LookupError, OSError, RecursionError, _UnreadableError):
        return None  # written otherwise than a plan can read: whoever runs it is told by the method itself


class _UnreadableError(Exception):
    """The options are there for Python alone."""


def _text(*parts: str) -> str:
    return _PACKAGE.joinpath(*parts).with_suffix(".py").read_text(encoding="utf-8")


def _options_of(module: str, name: str) -> Options:
    """What a class states, over what the class that it is derived from states."""
    if (module, name) == _CONTRACT:
        return Options()
    package, *place = module.split(".")
    if package != "ringmark":
        raise _UnreadableError(f"{module} is not of this package")
    tree = ast.parse(_text(*place))
    stated = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if stated is None or len(stated.bases) != 1:
        raise _UnreadableError(f"{module} has no class {name} with one base")
    above = _options_of(*_origin(tree, module, stated.bases[0]))
    values: dict[str, dict[str, Any]] = {"default_options": {}, "choices": {}}
    for line in stated.body:
        targets = [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
        for target in targets:
            if isinstance(target, ast.Name) and target.id in values:
                values[target.id] = ast.literal_eval(line.value)  # type: ignore[attr-defined]
    return above.below(Options(values["default_options"], values["choices"]))


def _origin(tree: ast.Module, module: str, base: ast.expr) -> tuple[str, str]:
    """The module and the name of a class that another one is derived from: `ring.Method`, or `Peer`."""
    imported = {
        alias.asname or alias.name: (_absolute(line, module), alias.name)
        for line in tree.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
        return ".".join(imported[base.value.id]), base.attr
    if isinstance(base, ast.Name):
        return imported.get(base.id, (module, base.id))
    raise ValueError("a base class is a name")


def _absolute(line: ast.ImportFrom, module: str) -> str:
    """The module that an import names, from within `module`: `from .ring import Method` is of its folder."""
    above = module.split(".")[: -line.level] if line.level else []
    return ".".join([*above, *filter(None, [line.module])])
