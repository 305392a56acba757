"""What methods, peers and kernels there are: the files of three folders, read without importing torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ringmark.cell import is_name
from ringmark.errors import UserError, nearest
from ringmark.options import Options

_PACKAGE = Path(__file__).parent
_CONTRACT = ("ringmark.methods.base", "Method")  # above it no class has options
# What reading a file raises that is written otherwise than a plan can read.
_NOT_LITERAL = (ValueError, SyntaxError, LookupError, OSError, TypeError, RecursionError)
EVERY = {"native": "methods", "peers": "peers"}  # a config's word for all of a folder: no method's name


def _files(*folders: Path) -> list[str]:
    """The names of files that stand for something: not base.py, nor what a first _ hides."""
    stems = {path.stem for folder in folders for path in folder.glob("*.py")}
    return sorted(stem for stem in stems if not stem.startswith("_") and stem != "base")


def named(kind: str, folders: Iterable[str | Path] = ()) -> list[str]:
    """The methods of a folder ("methods" or "peers"), by name: its files that a cell can name."""
    bad = misnamed(kind, folders)
    return [name for name in _files(*_places(kind, folders)) if name not in bad]


def misnamed(kind: str, folders: Iterable[str | Path] = ()) -> dict[str, str]:
    """What lies in a folder and is no method for its name alone, and what to do about it."""
    places = _places(kind, folders)
    taken = peer_names() if kind == "methods" else []
    found = {
        name: f"{kind}/{name}.py {reason}" for name in _files(*places) if (reason := _misfit(name, taken))
    }
    for inside in (path for place in places for path in place.glob("[!_.]*/__init__.py")):
        name = inside.parent.name
        found[name] = f"{kind}/{name} is a folder, and a method is one file: make it {name}.py, or _{name}"
    return dict(sorted(found.items()))


def _places(kind: str, folders: Iterable[str | Path]) -> list[Path]:
    """The folders of a kind: the package's own, unless Python was told to look in others."""
    return [Path(folder) for folder in folders] or [_PACKAGE / kind]


def _misfit(name: str, taken: Iterable[str]) -> str | None:
    """Why no cell can name a file so, and what to call it, or None."""
    if name in EVERY:
        return f"has a name that means all of them in a config: rename it, like my_{name}.py"
    if name in taken:
        return f"has the name of a peer: rename it, like my_{name}.py"
    if is_name(name):
        return None
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    better = re.sub(r"[^a-z0-9]+", "_", apart).strip("_") or "mine"
    return f"has a name that no cell can write: rename it to {better}.py (a-z, 0-9 and _)"


def check_named(name: str) -> None:
    """Refuse a name whose file is there and cannot be a method's, with what to do about it."""
    for kind in ("methods", "peers"):
        if reason := misnamed(kind).get(name):
            raise UserError(reason)


def check_there(kind: str, name: str, folders: Iterable[str | Path] = ()) -> None:
    """Refuse a name that is no method's of a folder, with what to do about it or the nearest that is one."""
    if reason := misnamed(kind, folders).get(name):
        raise UserError(reason)
    known = named(kind, folders)
    if name not in known:
        raise UserError(f"there is no {kind.removesuffix('s')} {name!r}: {nearest(name, known)}")


def native_names() -> list[str]:
    """Our own methods, by name."""
    return named("methods")


def peer_names() -> list[str]:
    """Adapters to other people's implementations, by name."""
    return named("peers")


def method_names() -> list[str]:
    """All that a cell can name: our own methods, then the peers."""
    return [*native_names(), *peer_names()]


@cache
def kernel_names() -> list[str]:
    """The local kernels, by name: the files that offer a KERNEL."""
    return [
        name
        for name in _files(_PACKAGE / "kernels")
        if re.search(r"^KERNEL\b.*=", _text("kernels", name), re.M)
    ]


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
    except (*_NOT_LITERAL, _UnreadableError):
        return None  # written otherwise than a plan can read: whoever runs it is told by the method itself


def labels(**folders: Iterable[str | Path]) -> dict[str, str]:
    """What tables call each method and peer, by its file, as far as that says it without being run."""
    found = {}
    for kind in EVERY.values():
        places = _places(kind, folders.get(kind, ()))
        for name in named(kind, places):
            path = next(path for place in places if (path := place / f"{name}.py").exists())
            if label := _label_in(path, path.stat().st_mtime_ns):
                found[f"{kind}/{name}.py"] = label
    return found


def same_label(file: str, known: Mapping[str, str]) -> str | None:
    """What to say of a file whose label another one has, case and spaces aside, or None."""
    plain = {each: "".join(label.split()).casefold() for each, label in known.items()}
    other = next((each for each in plain if each != file and plain[each] == plain.get(file)), None)
    return other and f"{file} has the label {known[file]!r}, and so has {other}: give one of them another"


def check_labels(methods: Collection[str]) -> None:
    """Refuse a method that would stand in tables under another's label."""
    known = labels()
    for file in known:
        if Path(file).stem in methods and (reason := same_label(file, known)):
            raise UserError(reason)


@cache
def _label_in(path: Path, changed: int) -> str | None:
    """The label that a file gives its class; None where a plan cannot read it there."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        stated = _class(tree, "Method")
        given = dict(_assigned(stated))["label"] if stated else None
        label = ast.literal_eval(_Constants(tree).visit(given)) if given else None
    except _NOT_LITERAL:
        return None
    return label if isinstance(label, str) else None


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
    stated = _class(tree, name)
    if stated is None or len(stated.bases) != 1:
        raise _UnreadableError(f"{module} has no class {name} with one base")
    above = _options_of(*_origin(tree, module, stated.bases[0]))
    constants = _Constants(tree)
    values: dict[str, dict[str, Any]] = {"default_options": {}, "choices": {}}
    for word, value in _assigned(stated):
        if word in values:
            values[word] = ast.literal_eval(constants.visit(value))
    return above.below(Options(values["default_options"], values["choices"]))


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _assigned(stated: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The names that a class assigns in its body, each with what it is given."""
    for line in stated.body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        if isinstance(line, ast.AnnAssign):
            targets = [line.target]
        value: ast.expr | None = getattr(line, "value", None)
        for target in targets if value is not None else []:
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):  # label, layout = ...
                pairs = list(zip(target.elts, value.elts))
            for one, its in pairs:
                if isinstance(one, ast.Name) and its is not None:
                    yield one.id, its


class _Constants(ast.NodeTransformer):
    """Puts what a file assigns to a name, once and at its top, in the place of that name."""

    def __init__(self, tree: ast.Module) -> None:
        self.values: dict[str, ast.expr | None] = {}
        for line in tree.body:
            targets = [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
            for target in targets:
                if isinstance(target, ast.Name):
                    # Of a name that is assigned again, a plan cannot tell what it stands for.
                    value = line.value if target.id not in self.values else None  # type: ignore[attr-defined]
                    self.values[target.id] = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.values.get(node.id)
        return node if value is None else self.visit(value)


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
