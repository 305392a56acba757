"""ringmark methods: every method and peer, what it needs, and whether it can run here."""

from __future__ import annotations

import argparse
from collections.abc import Callable

HELP = "list the methods, peers and kernels, with what this machine can run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", default="4x8", help="nodes x gpus for the bytes column (default 4x8)")


def run(args: argparse.Namespace) -> int:
    from ringmark import kernels, methods, peers
    from ringmark.cell import MeshShape
    from ringmark.errors import UserError
    from ringmark.methods.base import Method

    def made(load: Callable[[str], type[Method]], name: str) -> Method | str:
        """A method with its defaults; of a broken file, why there is none; others are listed all the same."""
        try:
            return load(name)()
        except (UserError, ImportError) as error:
            return str(error)

    mesh = MeshShape.parse(args.mesh)
    print(f"methods (layout; bytes that one rank sends in an iteration on {mesh}, in local tensors T)")
    for name in methods.names():
        method = made(methods.load, name)
        if isinstance(method, str):
            print(f"  {name:<14} broken: {method}")
            continue
        options = ", ".join(f"{key}={value}" for key, value in method.default_options.items())
        print(f"  {name:<14} {method.label}")
        print(f"  {'':<14} layout {method.layout}; {method.moves(mesh)}")
        if options:
            print(f"  {'':<14} options {options}")
    for name, reason in methods.misnamed().items():
        print(f"  {name:<14} broken: {reason}")
    print("peers (other people's implementations, timed by the same worker)")
    for name in peers.names():
        peer = made(peers.load, name)
        if isinstance(peer, str):
            print(f"  {name:<22} broken: {peer}")
        else:
            print(f"  {name:<22} {peer.label}: {peer.unavailable() or f'available, {peer.implementation}'}")
    for name, reason in peers.misnamed().items():
        print(f"  {name:<22} broken: {reason}")
    print("kernels ('auto' takes the fastest that fits)")
    for name, missing in kernels.availability().items():
        print(f"  {name:<14} {missing or f'available, {kernels.load(name).version()}'}")
    return 0
