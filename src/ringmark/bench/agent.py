"""The launcher of one node: torch's elastic agent starts this node's ranks and says how each one ended.

It dies with the supervisor, and its ranks die with it (the kernel's parent-death signal), so that nothing
is left behind, whoever is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

from ringmark import job as jobs
from ringmark.bench import progress


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)  # the parent was gone before we asked


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="ringmark.bench.agent", description=__doc__)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--rendezvous", default="127.0.0.1:0", help="HOST:PORT of the first node")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("job", help="the job's file")
    parser.add_argument("items", help="the items to run, like 0,1,4")
    args = parser.parse_args()

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    job = jobs.load(Path(args.job))
    config = LaunchConfig(
        min_nodes=args.nnodes,
        max_nodes=args.nnodes,
        nproc_per_node=args.nproc_per_node,
        run_id=args.run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=args.rendezvous,
        rdzv_configs={"timeout": job.start_limit_s},
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="127.0.0.1" if args.nnodes == 1 else None,
    )
    try:
        elastic_launch(config, sys.executable)(
            "-m", "ringmark.bench.worker", args.job, args.items, args.run_id, str(os.getpid())
        )
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            progress.write_exit(job.folder, args.run_id, rank, failure.exitcode)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
