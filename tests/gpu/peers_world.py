"""Runs peers against exact attention in one world of GPUs, and writes one line of JSON for each.

    torchrun --nproc-per-node 4 tests/gpu/peers_world.py ROWS.json OUT.jsonl     (started by test_peers.py)

Each row has a time limit: a rank that is over it ends itself, and with it the world; the parent starts
another for the rows that are left. Before a row starts, a line says so: an unfinished row is known by that.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ringmark import layout, peers
from ringmark.cell import Cell, MeshShape, Shape, parse_row
from ringmark.comm.mesh import Mesh, start

ROW_LIMIT_S = float(os.environ.get("RINGMARK_ROW_LIMIT_S", "40"))
HEADS, HEAD_DIM, SCALE = 8, 128, 128**-0.5


class Label:
    def __init__(self, name: str) -> None:
        self.name = name


def main() -> int:
    rows, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    show_flash_attn_to_transformer_engine()
    nodes = int(os.environ.get("RINGMARK_NODES", "1"))
    mesh = start(nodes, timeout_s=ROW_LIMIT_S)
    for row, kernel in rows:
        if mesh.rank == 0:
            append(out, {"started": f"{row} {kernel}"})
        faulthandler.dump_traceback_later(ROW_LIMIT_S, exit=True)
        began = time.monotonic()
        found = run_row(row, kernel, mesh)
        faulthandler.cancel_dump_traceback_later()
        found |= {"row": row, "kernel": kernel, "seconds": round(time.monotonic() - began, 1)}
        if mesh.rank == 0:
            append(out, found)
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


def append(out: Path, line: dict[str, Any]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(line, default=str) + "\n")


def show_flash_attn_to_transformer_engine() -> None:
    """Transformer Engine finds flash-attn by its metadata, which a build cut down to one kernel lacks."""
    import importlib.metadata
    import importlib.util

    try:
        importlib.metadata.version("flash-attn")
        return
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec("flash_attn") is None:
            return
    import flash_attn

    folder = Path(tempfile.mkdtemp()) / f"flash_attn-{flash_attn.__version__}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {flash_attn.__version__}\n"
    (folder / "METADATA").write_text(text)
    sys.path.append(str(folder.parent))


def run_row(row: str, kernel: str, mesh: Mesh) -> dict[str, Any]:
    name, options = parse_row(row)
    method = peers.load(name)(**options)
    seqlen = max(4096, 1024 * mesh.world_size)
    shape = Shape(1, HEADS, HEADS, HEAD_DIM, "bf16", "causal")
    cell = Cell(name, seqlen, shape, "fwd_bwd", MeshShape(mesh.nodes, mesh.gpus), kernel, options)
    reason = method.unavailable()
    status = "unavailable" if reason else "unsupported"
    reason = reason or method.unsupported(cell)
    reasons: list[Any] = [None] * mesh.world_size
    if dist.is_initialized():
        dist.all_gather_object(reasons, reason)
    if any(reasons):
        return {"status": status, "reason": next(one for one in reasons if one)}
    method.setup(mesh, Label(kernel), causal=True, scale=None)  # type: ignore[arg-type]
    errors = compare(method, mesh, seqlen)
    worst = torch.tensor(list(errors.values()), device=mesh.device)
    if dist.is_initialized():
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    found = dict(zip(errors, (float(f"{value:.3e}") for value in worst.tolist())))
    status = "ok" if max(found.values()) < 2e-2 else "wrong"
    return {"status": status, "errors": found, "layout": method.layout, "settings": method.settings()}


def compare(method: Any, mesh: Mesh, seqlen: int) -> dict[str, float]:
    """Relative errors (in norm) of this rank's out, dq, dk, dv against float32 attention of the whole."""
    generator = torch.Generator(mesh.device).manual_seed(3)
    size = (1, seqlen, HEADS, HEAD_DIM)
    q, k, v, dout = (
        torch.randn(size, generator=generator, device=mesh.device, dtype=torch.bfloat16) for _ in range(4)
    )
    rows = layout.tokens(method.layout, seqlen, mesh.rank, mesh.world_size).to(mesh.device)
    local = [x[:, rows].clone().requires_grad_() for x in (q, k, v)]
    out = method.forward(*local)
    out.backward(dout[:, rows].contiguous())
    exact = exact_rows(q, k, v, dout, rows)
    mine = (out.detach(), *(x.grad for x in local))
    return {
        name: ((a.float() - b).norm() / b.norm()).item()
        for name, a, b in zip(("out", "dq", "dk", "dv"), mine, exact)
    }


def exact_rows(q: Any, k: Any, v: Any, dout: Any, rows: torch.Tensor) -> list[torch.Tensor]:
    """out, dq, dk, dv at those rows, one head at a time in float32."""
    heads = []
    mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    for head in range(q.shape[2]):
        a, b, c, d = (x[0, :, head].float() for x in (q, k, v, dout))
        weights = (a @ b.T * SCALE).masked_fill(mask, float("-inf")).softmax(-1)
        out = weights @ c
        dscores = weights * (d @ c.T - (d * out).sum(-1, keepdim=True)) * SCALE
        heads.append([x[rows] for x in (out, dscores @ b, dscores.T @ a, weights.T @ d)])
    return [torch.stack(parts, 1)[None] for parts in zip(*heads)]


if __name__ == "__main__":
    sys.exit(main())
