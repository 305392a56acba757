"""ringmark methods: every method and peer, what it needs, and whether it can run here."""

from __future__ import annotations

import argparse

HELP = "list the methods, peers and kernels, with what this machine can run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", default="4x8", help="nodes x gpus for the bytes column (default 4x8)")


def run(args: argparse.Namespace) -> int:
    from ringmark import kernels, methods, peers
    from ringmark.cell import MeshShape

    mesh = MeshShape.parse(args.mesh)
    print(f"methods (layout; bytes that one rank sends in an iteration on {mesh}, in local tensors T)")
    for name in methods.names():
        method = methods.load(name)()
        options = ", ".join(f"{key}={value}" for key, value in method.default_options.items())
        print(f"  {name:<14} {method.label}")
        print(f"  {'':<14} layout {method.layout}; {method.moves(mesh)}")
        if options:
            print(f"  {'':<14} options {options}")
    print("peers (other people's implementations, timed by the same worker)")
    for name in peers.names():
        peer = peers.load(name)()
        print(f"  {name:<22} {peer.label}: {peer.unavailable() or f'available, {peer.implementation}'}")
    print("kernels ('auto' takes the fastest that fits)")
    for name, reason in kernels.availability().items():
        print(f"  {name:<14} {reason or f'available, {kernels.load(name).version()}'}")
    return 0
