"""Random faults against a real job: each ends as the record that says so, nothing lost, nothing left hanging.

    python tests/faults/inject.py --count 100 --seed 1 --ranks 2

Every fault has an item of its own (a small cell on CPU ranks), a random kind, moment and rank. The job is
run as ever; then each record is held against what was planted at that item, and no process may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

from ringmark import job as jobs
from ringmark import record, supervise
from ringmark.cell import PHASES, Cell, MeshShape, Shape
from ringmark.record import Asked, Record, Status

Device = Literal["cpu", "cuda"]
PLANT = Path(__file__).parent / "plant"
CELL_LIMIT_S = {"cpu": 8.0, "cuda": 40.0}
BEFORE_THE_CHECK = ("prepare", "inputs")
STAGES = ("prepare", "inputs", "check", "timing", "memory", "record")

# kind: (status, words of the reason, whether the record names the rank)
ENDS: dict[str, tuple[Status, str, bool]] = {
    "exception": (Status.CRASHED, "a planted exception", True),
    "python_memory": (Status.OOM, "MemoryError", True),
    "torch_memory": (Status.OOM, "allocate memory", True),
    "limited_memory": (Status.OOM, "allocate memory", True),
    "device_memory": (Status.OOM, "out of memory", True),
    "hang": (Status.TIMEOUT, "no result within", False),
    "stop": (Status.TIMEOUT, "has stopped answering", True),
    "wrong_answer": (Status.WRONG, "the answer is wrong", True),
    "missing_library": (Status.UNAVAILABLE, "a_library_that_is_not_there", False),
    "exit": (Status.CRASHED, "exit status 7", True),
    "exit_well": (Status.CRASHED, "before its work was done", True),
    "sys_exit": (Status.CRASHED, "the method ended its process (SystemExit: 0)", True),
    "interrupt": (Status.CRASHED, "the method ended its process (KeyboardInterrupt)", True),
    "kill": (Status.CRASHED, "SIGKILL", True),
    "segfault": (Status.CRASHED, "SIGSEGV", True),
    "kill_the_agent": (Status.CRASHED, "ended", False),
}
ONLY_ON = {"limited_memory": "cpu", "device_memory": "cuda"}
# These may strike from another thread.
DELAYED = ("exit", "exit_well", "kill", "segfault", "stop", "kill_the_agent")


@dataclass(frozen=True)
class Fault:
    """What happens, to whom, and when: at the start of a stage of an item, or so long after it."""

    id: int
    kind: str
    item: int
    rank: int
    stage: str
    delay_ms: int


def draw(
    count: int, ranks: int, seed: int, kinds: list[str] | None = None, device: Device = "cpu"
) -> list[Fault]:
    """Faults on every other item, so that each is followed by a healthy cell."""
    rng, faults = random.Random(seed), []
    there = [kind for kind in ENDS if ONLY_ON.get(kind, device) == device]
    for number in range(count):
        kind = kinds[number % len(kinds)] if kinds else rng.choice(there)
        stages = {"wrong_answer": BEFORE_THE_CHECK, "missing_library": ("prepare",)}.get(kind, STAGES)
        delay_ms = rng.choice((0, 0, 1, 5, 20, 60)) if kind in DELAYED else 0
        where = (2 * number, rng.randrange(ranks), rng.choice(stages))
        faults.append(Fault(number, kind, *where, delay_ms))
    return faults


def run(
    faults: list[Fault], ranks: int, folder: Path, say: supervise.Say = print, device: Device = "cpu"
) -> list[str]:
    """Run a job with these faults; returns what did not end as it must."""
    mesh, limit_s = MeshShape(1, ranks), CELL_LIMIT_S[device]
    asked = Asked(min_iterations=3, max_iterations=3)
    cells = [small(number, mesh, device) for number in range(2 * len(faults) + 1)]
    items = [jobs.Item(cell, asked, str(folder / record.record_path(cell, 0))) for cell in cells]
    job = jobs.Job("faults", "faults", mesh, items, str(folder / "job"), device=device, cell_limit_s=limit_s)
    job_file, planted = folder / "faults.job.json", folder / "faults.json"
    jobs.save(job, job_file)
    planted.write_text(json.dumps([asdict(fault) for fault in faults]))
    path = os.pathsep.join(filter(None, [str(PLANT), os.environ.get("PYTHONPATH", "")]))
    started = time.monotonic()
    with mock.patch.dict(os.environ, RINGMARK_FAULTS=str(planted), PYTHONPATH=path):
        found = supervise.run(job, job_file, say)
    seconds = time.monotonic() - started
    wrong = judge(faults, found, folder)
    wrong += [f"a process is left: {text}" for text in left_behind(str(folder))]
    # A fault costs its limit, the end of its world and the start of the next one at the very most.
    if seconds > 60 + len(faults) * (limit_s + 25):
        wrong.append(f"{len(faults)} faults took {seconds:.0f} s")
    return wrong


def small(number: int, mesh: MeshShape, device: Device) -> Cell:
    """The cell of an item: all different, all done in milliseconds, with a kernel that needs no compiling."""
    number, length = divmod(number, 8)
    number, heads = divmod(number, 8)
    number, phase = divmod(number, 2)
    head_dim, dtype = (8 * (1 + number), "fp32") if device == "cpu" else (64 * (1 + number % 2), "bf16")
    shape = Shape(1, 1 + heads, 1 + heads, head_dim, dtype, "causal")  # type: ignore[arg-type]
    kernel = "reference" if device == "cpu" else "sdpa_flash"
    return Cell("ring", 32 * mesh.world_size * (1 + length), shape, PHASES[phase], mesh, kernel)


def judge(faults: list[Fault], found: list[Record], folder: Path) -> list[str]:
    """What is not as it must be: a fault's record, or a healthy cell's."""
    wrong, struck = [], {}
    for fault in faults:
        mark = folder / f"fired{fault.id}.json"
        if not mark.exists():
            wrong.append(f"{fault} never happened")
            continue
        # A delayed fault strikes where its rank was by then; ranks outlive their agent by a moment.
        item = json.loads(mark.read_text())["item"]
        if fault.kind == "kill_the_agent" and found[item].status is Status.PASSED:
            item += found[item + 1].status is not Status.PASSED
        struck[item] = fault
    for item, one in enumerate(found):
        fault = struck.get(item)
        if fault is None:
            if one.status is not Status.PASSED:
                reason = one.failure.reason if one.failure else ""
                wrong.append(f"item {item} has no fault and is {one.status.value}: {reason}")
            continue
        wrong += [f"{fault}: {text}" for text in _unlike(fault, one, folder)]
    return wrong


def _unlike(fault: Fault, one: Record, folder: Path) -> list[str]:
    status, words, names_rank = ENDS[fault.kind]
    stage = json.loads((folder / f"fired{fault.id}.json").read_text())["stage"]
    if one.status is Status.PASSED and (stage in ("record", "done") or fault.kind == "kill_the_agent"):
        return []  # the record was on disk before the end: the measurement stands
    if one.status is not status or one.failure is None:
        return [f"ended as {one.status.value}: {one.failure.reason if one.failure else 'no failure'}"]
    told = []
    if words not in one.failure.reason:
        told.append(f"its reason does not say {words!r}: {one.failure.reason}")
    if names_rank and one.failure.rank != fault.rank:
        told.append(f"it blames rank {one.failure.rank}: {one.failure.reason}")
    return told


def left_behind(text: str) -> list[str]:
    """Processes whose command line speaks of this job's folder."""
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in words and path.parent.name != str(os.getpid()):
            left.append(f"{path.parent.name} {words}")
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kinds", nargs="+", choices=list(ENDS), help="only these, in turn")
    args = parser.parse_args()
    faults = draw(args.count, args.ranks, args.seed, args.kinds, args.device)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        say = partial(print, flush=True)
        wrong = run(faults, args.ranks, Path(folder), say, args.device)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(f.kind for f in faults).items()))
    print(f"{len(faults)} faults in {time.monotonic() - started:.0f} s: {kinds}")
    for text in wrong:
        print(f"WRONG {text}")
    print("every one ended as it must, nothing lost, nothing left" if not wrong else f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
