"""Every peer that this GPU host has, against exact attention: 4096 tokens or more, 8 heads, bf16, causal.

    python tests/gpu/test_peers.py [ROW:KERNEL ...]        one line each: row, ok or wrong, error or reason
    python -m pytest tests/gpu/test_peers.py
    RINGMARK_GPU_OUT=folder ...                            also writes folder/peers.json
    RINGMARK_GPUS=4, RINGMARK_NODES=2                      take 4 GPUs, and see them as two nodes

The rows run in one world. A row that hangs or crashes ends the world, is reported as such, and the rest goes
on in a new one; nothing runs past RINGMARK_GPU_LIMIT_S (115 s).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices"),
]
WORLD = Path(__file__).with_name("peers_world.py")
TE_ROWS = ("te_p2p", "te_a2a", "te_all_gather", "te_a2a_p2p+a2a=2", "megatron_cp")
ROWS = [
    *((row, "cudnn") for row in TE_ROWS),
    ("torch_cp", "cudnn"),
    ("torch_cp+rotate=alltoall", "cudnn"),
    ("torch_cp+api=manager", "cudnn"),
    ("torch_cp", "sdpa_flash"),
    ("ring_flash_attn_zigzag", "flash2"),
    ("ring_flash_attn_ring", "flash2"),
    ("ring_flash_attn_stripe", "flash2"),
    ("yunchang_usp", "flash2"),
    ("yunchang_usp+ulysses=2", "flash2"),
    ("yunchang_usp+ring=strip+ulysses=1", "flash2"),
    ("yunchang_usp+ring=basic+ulysses=1", "flash2"),
    *((row, "flash2") for row in TE_ROWS),
    ("burst_attn", "flash2"),
    ("internevo_double_ring", "flash2"),
]


def run_rows(rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """What became of each row, in order; always returns within the limit."""
    deadline = time.monotonic() + float(os.environ.get("RINGMARK_GPU_LIMIT_S", "115"))
    found: dict[str, dict[str, Any]] = {}
    left = list(rows)
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(len(rows)):
            if not left or time.monotonic() > deadline - 15:
                break
            lines, said = one_world(left, Path(folder), attempt, deadline)
            for line in lines:
                if "row" in line:
                    found[f"{line['row']} {line['kernel']}"] = line
            begun = [line["started"] for line in lines if "started" in line]
            broken = [name for name in begun if name not in found] or (
                [] if begun else [" ".join(left[0])]  # a world that never came up costs its first row
            )
            for name in broken:
                row, kernel = name.split()
                found[name] = {"row": row, "kernel": kernel, "status": "crashed", "reason": said}
            left = [one for one in left if " ".join(one) not in found]
    for row, kernel in left:
        reason = "the time limit of the whole test came first"
        found[f"{row} {kernel}"] = {"row": row, "kernel": kernel, "status": "timeout", "reason": reason}
    return [found[" ".join(one)] for one in rows]


def one_world(
    rows: list[tuple[str, str]], folder: Path, attempt: int, deadline: float
) -> tuple[list[dict[str, Any]], str]:
    """(the lines that a world wrote, the end of what it said if it failed)."""
    asked, out, log = (folder / f"{name}{attempt}" for name in ("rows.json", "out.jsonl", "log"))
    asked.write_text(json.dumps(rows))
    out.touch()
    gpus = int(os.environ.get("RINGMARK_GPUS", torch.cuda.device_count()))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    with log.open("w") as said:
        world = subprocess.Popen(
            [*launch, str(WORLD), str(asked), str(out)], stdout=said, stderr=said, start_new_session=True
        )
        try:
            world.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            said.write("\nended at the time limit of the whole test\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(world.pid, signal.SIGKILL)
            world.wait()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return lines, cause(log.read_text())


def cause(log: str) -> str:
    """The line of a log that names the error, else its end."""
    raised = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b: |Timeout \(")
    named = [line for line in log.splitlines() if raised.match(line)]
    return (named[0] if named else log[-300:]).strip()[:300]


def report(found: list[dict[str, Any]]) -> str:
    lines = []
    for one in found:
        errors = one.get("errors", {})
        detail = " ".join(f"{name} {error:.1e}" for name, error in errors.items()) or one.get("reason", "")
        lines.append(f"{one['row']:<36} {one['kernel']:<11} {one['status']:<12} {detail}")
    if "RINGMARK_GPU_OUT" in os.environ:
        folder = Path(os.environ["RINGMARK_GPU_OUT"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "peers.json").write_text(json.dumps(found, indent=1, default=str))
    return "\n".join(lines)


def test_every_peer_that_is_here_is_right() -> None:
    found = run_rows(ROWS)
    print(report(found))
    bad = [one for one in found if one["status"] in ("wrong", "crashed", "timeout")]
    assert not bad
    assert [one for one in found if one["status"] == "ok"], "no peer is available on this host"


if __name__ == "__main__":
    chosen = [tuple(word.rsplit(":", 1)) for word in sys.argv[1:]]
    print(report(run_rows(chosen or ROWS)))  # type: ignore[arg-type]
