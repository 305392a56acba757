"""What every rank runs: one world, many cells in turn, one record for each.

    python -m ringmark.bench.worker JOB ITEMS RUN_ID PARENT      (started by ringmark.bench.agent)

A cell that is unsupported, unavailable or wrong ends as a record and the world goes on. Anything else that
goes wrong ends this rank: the agent ends the others, the supervisor writes the record and starts a new
world for what is left, since nobody can say what state the communicators of a broken cell are in.
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ringmark import host, record
from ringmark import job as jobs
from ringmark.bench import environment, gather, preflight, stacks
from ringmark.bench.agent import die_with_parent
from ringmark.bench.measure import measure_cell
from ringmark.bench.progress import DONE, Reporter, keep_environment
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError
from ringmark.record import Record, Status

EXIT_FAILED = 3
# A rank blocked in a collective gives up by itself only long after the supervisor has ended the cell.
COLLECTIVE_MARGIN_S = 120.0


def main() -> int:
    job_file, items, run_id, parent = sys.argv[1:5]
    die_with_parent(int(parent))
    job = jobs.anchored(jobs.load(Path(job_file)))  # a method may change the folder that it works in
    rank = int(os.environ["RANK"])
    stacks.register(Path(job.folder, run_id), rank)  # before it says where it is: then it may be asked
    reporter = Reporter(job.folder, run_id, rank)
    try:
        mesh = join(job)
        before = environment.collect(mesh)
        if job.preflight is not None:
            reporter.at("preflight")
            before["preflight_flags"] = preflight.once(mesh, Path(job.preflight), job.allow_slow)
        if rank == 0:
            keep_environment(reporter.folder, before)
        for order, index in enumerate(int(word) for word in items.split(",")):
            reporter.at("prepare", index)
            measure(job.items[index], job.campaign, mesh, reporter, run_id, order, before)
        reporter.at(DONE, len(job.items))
        dist.destroy_process_group()
        return 0
    except BaseException as error:  # the one place that turns a crash into a record, an exit as well
        reporter.failed(*classify(error))
        sys.stderr.flush()
        os._exit(EXIT_FAILED)  # no clean-up: it could wait for ranks that are gone


def join(job: jobs.Job) -> Mesh:
    """Join the world; every rank has one device, and a mesh of one rank has a world too."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available() if job.device == "auto" else job.device == "cuda"
    if job.virtual_nodes:
        os.environ["NCCL_HOSTID"] = f"ringmark-node{rank // job.mesh.gpus}"
    if cuda and local >= torch.cuda.device_count():
        host.gpus_for("cuda")  # says what to do where there is none at all
        raise UserError(f"rank {rank} has no GPU: {torch.cuda.device_count()} are visible on its node")
    if cuda:
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(seconds=job.cell_limit_s + COLLECTIVE_MARGIN_S)
    )
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    return Mesh(job.mesh.nodes, job.mesh.gpus, rank, device)


def measure(
    item: jobs.Item,
    campaign: str,
    mesh: Mesh,
    reporter: Reporter,
    run_id: str,
    order: int,
    before: dict[str, Any],
) -> None:
    """Measure a cell and keep its record, unless another run of its campaign has done so in the meantime."""
    if gather.decided_by_rank_0(mesh, mesh.rank == 0 and item.done()):
        return
    found = measure_cell(item, campaign, mesh, reporter, run_id, order, before)
    save(found, item, mesh, reporter)


def save(found: Record, item: jobs.Item, mesh: Mesh, reporter: Reporter) -> None:
    """Rank 0 writes, but nothing over an answer; nobody starts the next cell before the record is on disk."""
    reporter.at("record")
    if mesh.rank == 0 and not item.done():
        record.write(found, Path(item.out))
    gather.barrier(mesh)
    gather.synchronize(mesh)


def classify(error: BaseException) -> tuple[Status, str, str, bool]:
    """(status, reason, detail, secondary) of an exception that ends a rank."""
    detail = "".join(traceback.format_exception(error))[-4000:]
    text = " ".join(str(error).split())
    raised = f"{type(error).__name__}: {text}"
    reason = (text if isinstance(error, UserError) else raised)[:500]
    if not isinstance(error, Exception):  # sys.exit and the like: no word of why
        said = raised[:300].rstrip(": ")
        reason = f"the method ended its process ({said}): let it raise an error that says why"
        return Status.CRASHED, reason, detail, False
    # torch's own allocators, then the driver and NCCL, which have no exception of their own for it.
    full = ("can't allocate memory", "driver error: out of memory", "failure 2 'out of memory'")
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or any(words in text for words in full):
        return Status.OOM, reason, detail, False
    # gloo and NCCL say in these words that the other end went away: another rank's failure is the cause.
    gone = [
        *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connection was closed"),
        *("remote process exited", "Socket closed", "recvValue failed", "sendBytes failed"),
    ]
    return Status.CRASHED, reason, detail, any(words in text for words in gone)


if __name__ == "__main__":
    sys.exit(main())
