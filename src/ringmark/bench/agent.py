"""The launcher of one node: torch's elastic agent starts this node's ranks and says how each one ended.

It dies with what started it, and its ranks die with it (the kernel's parent-death signal). In a container
or on another node nothing dies with the supervisor, so there the agent watches the supervisor's beat too:
nothing is left behind, whoever is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ringmark import job as jobs
from ringmark.bench import progress, stacks
from ringmark.errors import UserError

LEASE_S = 180.0  # well over the minute for which a shared file system may show an old beat


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)  # the parent was gone before we asked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nnodes", type=int, default=1, help="how many nodes the world has")
    parser.add_argument("--nproc-per-node", type=int, required=True, help="ranks on each node")
    parser.add_argument("--rendezvous", help="HOST:PORT on the first node, where there are several")
    parser.add_argument("--watch-supervisor", action="store_true", help="end when its beat ends")
    parser.add_argument("--folder", help="where paths start from, if not here")
    parser.add_argument("--run-id", required=True, help="the folder, in the job's, that the world reports to")
    parser.add_argument("job", help="the job's file")
    parser.add_argument("items", help="the items to run, like 0,1,4")


def run(args: argparse.Namespace) -> int:
    """Start this node's ranks; their exit statuses are written down."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    if args.folder:
        os.chdir(args.folder)
    job = jobs.load(Path(args.job))
    if folder := os.environ.get("TMPDIR"):
        make_scratch(folder)
    if args.watch_supervisor:
        lease = progress.Lease(job.folder, args.run_id, LEASE_S)
        threading.Thread(target=end_without_supervisor, args=(lease,), daemon=True).start()
    ranks_of = (Path(job.folder, args.run_id), job.mesh.world_size)
    threading.Thread(target=stacks.pass_on, args=ranks_of, daemon=True).start()
    try:
        elastic_launch(launch_config(args, job), sys.executable)(
            "-m", "ringmark.bench.worker", args.job, args.items, args.run_id, str(os.getpid())
        )
    except ChildFailedError as error:
        failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
        for rank, code in exit_codes(args, failed).items():
            progress.write_exit(job.folder, args.run_id, rank, code)
        return 1
    except SignalException as error:
        progress.write_told_to_end(job.folder, args.run_id, node_of(args))
        return 128 + error.sigval
    return 0


def exit_codes(args: argparse.Namespace, failed: dict[int, int]) -> dict[int, int]:
    """How the ranks of this node ended, as far as torch says it.

    It names those that failed. Whom it does not name has ended well, unless it is a torch (2.4, say) that
    does not name the ranks that it has ended itself.
    """
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    first = node_of(args) * args.nproc_per_node
    here = range(first, first + args.nproc_per_node)
    names_all = hasattr(SubprocessContext, "_capture_process_failures")
    return {**dict.fromkeys(here if names_all else (), 0), **failed}


def make_scratch(folder: str) -> None:
    """A cluster's scratch is made on every node; a rank that cannot write there would fail much later."""
    advice = "name a folder of your own under 'scratch' in the cluster file"
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made on {os.uname().nodename} ({error.strerror}): {advice}"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written on {os.uname().nodename}: {advice}")


def launch_config(args: argparse.Namespace, job: jobs.Job) -> Any:
    """One node finds its own port; of several each knows its place, so that rank 0 is on the first."""
    from torch.distributed.launcher.api import LaunchConfig

    common: dict[str, Any] = {
        "min_nodes": args.nnodes,
        "max_nodes": args.nnodes,
        "nproc_per_node": args.nproc_per_node,
        "run_id": args.run_id,
        "max_restarts": 0,
        "monitor_interval": 0.1,
    }
    timeout = int(job.start_limit_s)
    if args.nnodes == 1:
        return LaunchConfig(
            **common,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            rdzv_configs={"timeout": timeout},
            local_addr="127.0.0.1",
        )
    return LaunchConfig(
        **common,
        rdzv_backend="static",
        rdzv_endpoint=args.rendezvous,
        rdzv_configs={"rank": node_of(args), "timeout": timeout},
    )


def node_of(args: argparse.Namespace) -> int:
    """This node's place in the world."""
    return int(os.environ["SLURM_NODEID"]) if args.nnodes > 1 else 0


def end_without_supervisor(lease: progress.Lease) -> None:
    """End this process, and with it its ranks, when the supervisor's beat stops."""
    while not lease.expired():
        time.sleep(5.0)
    os._exit(1)


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="ringmark.bench.agent", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except UserError as error:
        print(f"ringmark: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
