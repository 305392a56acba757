"""ringmark run: one cell, measured beside its bound, printed as one row and kept as one record."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ringmark import catalog, cost, fabric, host, record, supervise
from ringmark import job as jobs
from ringmark.arguments import count, duration, positive
from ringmark.cell import BOUND, DTYPES, PHASES, Cell, Dtype, MeshShape, Shape, parse_option, parse_row
from ringmark.errors import UserError, nearest
from ringmark.record import Asked, Failure, Record, Status
from ringmark.row import headline_row, profile_lines

HELP = "measure one cell on this host and print its row"
INTERRUPTED = "nothing is kept: a record is written when its cell is done"
SLOW_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cell = parser.add_argument_group("the cell")
    cell.add_argument("--method", required=True, help="a method or peer ('ringmark methods' lists them)")
    cell.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a method's option")
    cell.add_argument("--seqlen", type=count, required=True, help="seqlen_global: tokens over all ranks")
    cell.add_argument("--heads", type=count, default=40, help="query heads (40)")
    cell.add_argument("--kv-heads", type=count, help="key and value heads (as many as query heads)")
    cell.add_argument("--head-dim", type=count, default=128, help="head size (128)")
    cell.add_argument("--batch", type=count, default=1, help="batch size (1)")
    cell.add_argument("--dtype", choices=DTYPES, help="bf16 on GPUs, fp32 on the CPU")
    cell.add_argument("--mask", choices=("causal", "full"), default="causal", help="causal or full (causal)")
    cell.add_argument("--phase", choices=PHASES, default="fwd_bwd", help="fwd or fwd_bwd (fwd_bwd)")
    cell.add_argument("--mesh", help="nodes x gpus, like 2x4 (one node with all GPUs; 1x2 on the CPU)")
    cell.add_argument("--kernel", default="auto", help="the local kernel (auto: the fastest that fits)")
    how = parser.add_argument_group("how it is measured")
    how.add_argument(
        "--iters", type=count, help="exactly so many timed iterations (else until the interval is narrow)"
    )
    how.add_argument("--warmup", type=int, help=f"untimed iterations, at least 3 ({Asked.warmup})")
    how.add_argument(
        "--warmup-s",
        type=duration,
        metavar="SECONDS",
        help=f"untimed for at least so long ({Asked.warmup_s:g})",
    )
    how.add_argument(
        "--protocol", action="append", choices=("isolated", "pipelined"), help="isolated; repeatable"
    )
    how.add_argument("--seed", type=int, help=f"of the inputs ({Asked.seed})")
    how.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs where there are any"
    )
    how.add_argument("--virtual-nodes", action="store_true", help="let NCCL treat the mesh's nodes as hosts")
    how.add_argument("--fabric", help="NCCL's variables for the network between nodes: ib, roce, efa, tcp")
    how.add_argument(
        "--limit", type=positive, default=600.0, metavar="SECONDS", help="end a hung cell after this (600)"
    )
    how.add_argument(
        "--profile", action="store_true", help="also say where the time goes, and keep the trace"
    )
    how.add_argument("--no-bound", action="store_true", help="do not measure the kernel alone beside it")
    parser.add_argument("--out", type=Path, help="write the record to this file")


def run(args: argparse.Namespace) -> int:
    gpus = host.gpus_for(args.device)
    if not gpus:
        print("no GPU is used: the ranks run on the CPU with gloo (for GPUs: docker run --gpus all ...)")
    cell, asked = cell_of(args, gpus), asked_of(args)
    if args.out is not None:
        check_out(args.out)
    trace = trace_of(args, cell)
    if refusal := refused(cell, gpus):
        status, reason = refusal
        keep(args, Record(cell, asked, status, "run", failure=Failure(reason)), None)
        raise UserError(reason)  # what was asked cannot be: a mistake, told in one sentence
    warn_if_slow(cell, asked, gpus)
    with tempfile.TemporaryDirectory(prefix="ringmark-") as folder:
        found, bound = measure(args, cell, asked, bool(gpus), Path(folder))
        keep(args, found, bound)
        where = keep_trace(found, Path(folder), trace)
    if found.status in (Status.UNSUPPORTED, Status.UNAVAILABLE) and found.failure:
        raise UserError(found.failure.reason)
    print(headline_row(found, bound))
    if args.out is None and found.failure is not None and found.failure.detail:
        print("    (with --out FILE its record is kept, and the traceback or log of that rank in it)")
    if found.profile is not None:
        print("\n".join([*profile_lines(found.profile), f"    trace: {where} (for ui.perfetto.dev)"]))
    return 0 if found.status is Status.PASSED else 1


def refused(cell: Cell, gpus: int) -> tuple[Status, str] | None:
    """Why the method does not take the cell: asked before its bound is measured for nothing."""
    from ringmark.bench import ask

    return ask.refusal_elsewhere(cell) if gpus else ask.refusal(cell)


def check_out(out: Path) -> None:
    """Say at once that the record could not be kept, before minutes are spent measuring."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name the record's file, like {out / 'record.json'}")
    supervise.check_writable(out.resolve().parent)


def cell_of(args: argparse.Namespace, gpus: int) -> Cell:
    """The cell that the arguments name."""
    method, options = parse_row(args.method)
    catalog.check_named(method)
    known = catalog.method_names()
    if method not in known:
        raise UserError(f"there is no method {method!r}: {nearest(method, known)}")
    if reason := catalog.unknown_kernel(args.kernel):
        raise UserError(reason)
    for assignment in args.option:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--option {assignment!r} is no assignment: write NAME=VALUE")
        if name in options:
            raise UserError(f"--option {assignment}: {name} is given twice: leave one")
        options[name] = parse_option(value)
    mesh = MeshShape.parse(args.mesh) if args.mesh else MeshShape(1, gpus or 2)
    host.check_fits(mesh, gpus)
    dtype: Dtype = args.dtype or ("bf16" if gpus else "fp32")
    try:
        shape = Shape(args.batch, args.heads, args.kv_heads or args.heads, args.head_dim, dtype, args.mask)
        return Cell(method, args.seqlen, shape, args.phase, mesh, args.kernel, options)
    except ValueError as error:
        raise UserError(str(error)) from None


def warn_if_slow(cell: Cell, asked: Asked, gpus: int) -> None:
    rate = cost.ASSUMED_TFLOPS["cuda" if gpus else "cpu"]
    seconds = cost.cell_seconds(cell, asked, rate)
    if seconds > SLOW_S:
        print(f"this may take about {seconds / 60:.0f} min at {rate:g} TFLOP/s per rank; Ctrl-C ends it")


def asked_of(args: argparse.Namespace) -> Asked:
    """What the arguments ask of the measurement; what they leave out is as in a config."""
    said = {
        "seed": args.seed,
        "protocols": args.protocol,
        "warmup": args.warmup,
        "warmup_s": args.warmup_s,
        "min_iterations": args.iters,
        "max_iterations": args.iters,
        "profile": args.profile,
    }
    try:
        return Asked(**{name: value for name, value in said.items() if value is not None})
    except ValueError as error:
        raise UserError(str(error)) from None


def measure(
    args: argparse.Namespace, cell: Cell, asked: Asked, cuda: bool, folder: Path
) -> tuple[Record, Record | None]:
    """The cell's record and its bound's, measured in one world."""
    wanted = [cell]
    if not args.no_bound and cell.method != BOUND:
        wanted.insert(0, Cell(BOUND, cell.seqlen_global, cell.shape, cell.phase, cell.mesh, cell.kernel))
    items = [jobs.Item(one, asked, str(folder / record.record_path(one, 0))) for one in wanted]
    job = jobs.Job(
        id="run",
        campaign="run",
        mesh=cell.mesh,
        items=items,
        folder=str(folder / "world"),
        device="cuda" if cuda else "cpu",
        virtual_nodes=args.virtual_nodes,
        env=fabric.variables(args.fabric or (fabric.VIRTUAL if args.virtual_nodes else None)),
        cell_limit_s=args.limit,
    )
    job_file = folder / "run.job.json"
    jobs.save(job, job_file)
    found = supervise.run(job, job_file, say=lambda line: print(line, file=sys.stderr), reasons=False)
    return found[-1], found[0] if len(found) == 2 else None


def keep(args: argparse.Namespace, found: Record, bound: Record | None) -> None:
    """Write the record where it was asked for, and its bound's beside it."""
    if args.out is not None:
        record.write(found, args.out)
        if bound is not None:
            record.write(bound, args.out.with_suffix(".bound.json"))


def trace_of(args: argparse.Namespace, cell: Cell) -> Path:
    """Where a trace is kept: beside the record, else in the working directory, where it can be written."""
    if args.out is not None:
        out: Path = args.out
        return out.with_suffix(".trace.json.gz")
    if args.profile:
        supervise.check_writable(Path())
    return Path(f"{cell.row}-S{cell.seqlen_global}_{cell.phase}.trace.json.gz")


def keep_trace(found: Record, folder: Path, target: Path) -> Path | None:
    """Copy the trace of a profiled cell out of the folder in which it was measured."""
    if found.profile is None:
        return None
    record.write_atomic(target, (folder / found.path).with_suffix(".trace.json.gz").read_bytes())
    return target
