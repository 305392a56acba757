"""ringmark methods: every method and peer, what it needs, and whether it can run here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringmark.cell import MeshShape, option_text
from ringmark.errors import UserError, in_words

if TYPE_CHECKING:  # methods load torch, and the help of this verb is printed without it
    from ringmark.methods.base import Method

HELP = "list the methods, peers and kernels, with what this machine can run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", default="4x8", help="nodes x gpus for the bytes column (default 4x8)")


def run(args: argparse.Namespace) -> int:
    from ringmark import catalog, kernels, methods, peers

    known = catalog.labels(methods=methods.__path__, peers=peers.__path__)
    mesh = MeshShape.parse(args.mesh)
    print(f"methods (layout; bytes that one rank sends in an iteration on {mesh}, in local tensors T)")
    for name in methods.names():
        alike = catalog.same_label(f"methods/{name}.py", known)
        first, *more = told(methods.load, name, lambda method: native_lines(method, mesh), alike)
        print(f"  {name:<14} {first}")
        for line in more:
            print(f"  {'':<14} {line}")
    for name, reason in methods.misnamed().items():
        print(f"  {name:<14} broken: {reason}")
    print("peers (other people's implementations, timed by the same worker)")
    for name in peers.names():
        alike = catalog.same_label(f"peers/{name}.py", known)
        print(f"  {name:<22} {told(peers.load, name, peer_lines, alike)[0]}")
    for name, reason in peers.misnamed().items():
        print(f"  {name:<22} broken: {reason}")
    print("kernels ('auto' takes the fastest that fits)")
    for name, missing in kernels.availability().items():
        print(f"  {name:<14} {missing or f'available, {kernels.load(name).version()}'}")
    return 0


def told(
    load: Callable[[str], type[Method]], name: str, lines: Callable[[Method], list[str]], broken: str | None
) -> list[str]:
    """What a file says of itself; of a broken one, why it does not: others are listed all the same."""
    try:
        return lines(load(name)()) if broken is None else [f"broken: {broken}"]
    except (UserError, ImportError) as error:
        return [f"broken: {error}"]
    except (Exception, SystemExit) as error:  # its author's mistake, wherever it is
        return [f"broken: {in_words(error)}"]


def native_lines(method: Method, mesh: MeshShape) -> list[str]:
    options = ", ".join(f"{key}={option_text(value)}" for key, value in method.default_options.items())
    moves: object = method.moves(mesh)
    if not isinstance(moves, str):
        raise TypeError(f"moves(mesh) gives {moves!r}: return what a rank sends, in words")
    lines = [method.label, f"layout {method.layout}; {moves}"]
    if reason := missing(method):
        lines.append(f"cannot run here: {reason}")
    return [*lines, f"options {options}"] if options else lines


def peer_lines(peer: Method) -> list[str]:
    return [f"{peer.label}: {missing(peer) or f'available, {peer.implementation}'}"]


def missing(method: Method) -> str | None:
    """Why it cannot run here, or None."""
    from ringmark.methods.base import reason_of

    return reason_of("unavailable()", method.unavailable())
