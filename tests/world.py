"""Worlds of gloo ranks for tests: forked from this process, which has imported torch once, so cheap.

    results = run_world(8, check, nodes=2)      check(mesh, ...) runs on every rank; results[rank]

An exception on a rank is raised here with that rank's traceback. A world from which nothing is heard for its
time limit is ended, with the stack of a rank that had not finished: never a hanging test. Ranks are heard
when they have joined and when they answer: how long it takes to start them on a busy machine does not count.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ringmark.comm.mesh import Mesh

START_S = 120.0  # until every rank has joined
DUMP_S = 10.0
_JOINED = b"."  # a pickled answer begins otherwise

# Before the first parallel region: threads that exist do not survive a fork.
torch.set_num_threads(1)


class WorldError(AssertionError):
    """A rank failed or hung; the message says which and where."""


def run_world(
    world_size: int, function: Callable[..., Any], *args: Any, nodes: int = 1, timeout_s: float = 300.0
) -> list[Any]:
    """What function(mesh, *args) returns on each of `world_size` ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.stdout.flush()
        sys.stderr.flush()
        ranks = {}
        for rank in range(world_size):
            read_end, write_end = os.pipe()
            _stack(folder, rank).touch()
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                _be_rank(rank, world_size, nodes, folder, write_end, function, args, timeout_s)
            os.close(write_end)
            ranks[read_end] = (rank, pid)
        try:
            answers = _collect(ranks, timeout_s)
            _ask_for_stacks(folder, {rank: pid for rank, pid in ranks.values() if rank not in answers})
        finally:
            for descriptor, (_, pid) in ranks.items():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(descriptor)
        return _judge(answers, world_size, folder)


def _be_rank(
    rank: int,
    world_size: int,
    nodes: int,
    folder: Path,
    write_end: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout_s: float,
) -> None:
    """The life of a forked rank; never returns."""
    try:
        stacks = open(_stack(folder, rank), "w")  # noqa: SIM115 - open until the rank dies
        faulthandler.register(signal.SIGUSR1, file=stacks)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=START_S + timeout_s),
        )
        os.write(write_end, _JOINED)
        result = function(Mesh(nodes, world_size // nodes, rank, torch.device("cpu")), *args)
        answer = (True, result)
    except BaseException:
        answer = (False, traceback.format_exc())
    try:
        data = pickle.dumps(answer)
    except Exception:
        data = pickle.dumps((False, traceback.format_exc()))
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(data)
    # Stay until the parent ends us: leaving would break the connections of ranks that still work.
    signal.pause()
    os._exit(0)


def _collect(ranks: dict[int, tuple[int, int]], timeout_s: float) -> dict[int, bytes]:
    """The pickled answer of every rank that gave one in time; a failed rank ends the wait a little later."""
    open_ends, answers = set(ranks), {}
    buffers = {descriptor: bytearray() for descriptor in ranks}
    deadline, last = time.monotonic() + START_S, float("inf")
    while open_ends and time.monotonic() < min(deadline, last):
        ready, _, _ = select.select(list(open_ends), [], [], 0.2)
        for descriptor in ready:
            data = os.read(descriptor, 1 << 20)
            buffers[descriptor] += data
            if all(buffers.values()):
                deadline = time.monotonic() + timeout_s
            if data:
                continue
            open_ends.discard(descriptor)
            answer = bytes(buffers[descriptor]).removeprefix(_JOINED)
            answers[ranks[descriptor][0]] = answer
            if not answer or not pickle.loads(answer)[0]:
                last = min(last, time.monotonic() + 1.0)  # the others wait for it in vain
    return answers


def _ask_for_stacks(folder: Path, unfinished: dict[int, int]) -> None:
    """Have the ranks that have not answered write where they are, and wait until one has."""
    for pid in unfinished.values():
        os.kill(pid, signal.SIGUSR1)
    before, deadline = "", time.monotonic() + DUMP_S
    while unfinished and time.monotonic() < deadline:
        time.sleep(0.1)
        text = _stack(folder, min(unfinished)).read_text()
        if text and text == before:
            return
        before = text


def _stack(folder: Path, rank: int) -> Path:
    return folder / f"stack{rank}"


def _judge(answers: dict[int, bytes], world_size: int, folder: Path) -> list[Any]:
    __tracebackhide__ = True
    decoded = {rank: pickle.loads(data) if data else (False, "died") for rank, data in answers.items()}
    failed = {rank: text for rank, (ok, text) in decoded.items() if not ok}
    if failed:
        rank = min(failed)
        raise WorldError(f"ranks {sorted(failed)} of {world_size} failed; rank {rank}:\n{failed[rank]}")
    hung = [rank for rank in range(world_size) if rank not in decoded]
    if hung:
        stack = _stack(folder, hung[0]).read_text()
        raise WorldError(f"ranks {hung} of {world_size} hung; rank {hung[0]} was here:\n{stack}")
    return [decoded[rank][1] for rank in range(world_size)]
