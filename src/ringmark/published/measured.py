"""What was measured, as a verdict needs it: one row for each cell of a campaign, its repeats folded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringmark import campaign_check
from ringmark.campaign_refused import refuse
from ringmark.record import Record
from ringmark.stats import quantile


@dataclass(frozen=True)
class Measured:
    """A cell as measured; without a time, its status says why."""

    method: str
    seqlen_global: int
    phase: str
    status: str
    options: dict[str, str] = field(default_factory=dict)
    batch: int = 1
    num_heads_q: int = 40
    num_heads_kv: int = 40
    head_dim: int = 128
    causal: bool = True
    dtype: str = "bf16"
    nodes: int = 1
    gpus_per_node: int = 1
    device: str | None = None
    kernel: str | None = None  # that ran
    kernel_asked: str | None = None
    time_ms: float | None = None
    tflops_per_gpu: float | None = None
    mem_peak_mib: float | None = None
    reason: str = ""
    source: str = ""

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def problem(self) -> tuple[object, ...]:
        """What a cell is asked to do, whatever runs it."""
        shape = (self.batch, self.num_heads_q, self.num_heads_kv, self.head_dim, self.causal, self.dtype)
        return (*shape, self.seqlen_global, self.phase, self.nodes, self.gpus_per_node)

    @property
    def setting(self) -> tuple[object, ...]:
        """What two rows must share for their ratio to be one between methods."""
        return (*self.problem, self.device, self.kernel)

    @property
    def where(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node} {self.device or 'device unknown'}"


def from_record(found: Record) -> Measured:
    """One record as a row."""
    cell, ran, passed = found.cell, found.ran, found.timing is not None and found.memory is not None
    return Measured(
        method=cell.method,
        seqlen_global=cell.seqlen_global,
        phase=cell.phase,
        status=found.status.value,
        options={key: str(value).lower() for key, value in cell.options.items()},
        batch=cell.shape.batch,
        num_heads_q=cell.shape.num_heads_q,
        num_heads_kv=cell.shape.num_heads_kv,
        head_dim=cell.shape.head_dim,
        causal=cell.shape.causal,
        dtype=cell.shape.dtype,
        nodes=cell.mesh.nodes,
        gpus_per_node=cell.mesh.gpus,
        device=ran.device if ran else None,
        kernel=ran.kernel if ran else None,
        kernel_asked=cell.kernel,
        time_ms=found.timing.headline.summary.median if passed and found.timing else None,
        tflops_per_gpu=found.timing.tflops_per_gpu if passed and found.timing else None,
        mem_peak_mib=found.memory.peak_mib if passed and found.memory else None,
        reason=found.failure.reason if found.failure else "",
        source=str(found.path),
    )


def read_campaign(folder: Path) -> list[Measured]:
    """The rows of the records of a campaign that `ringmark check` lets pass."""
    checked = campaign_check.check(folder)
    refuse(folder, checked.problems)
    return cells([from_record(one) for _, one in checked.found])


def cells(rows: Sequence[Measured]) -> list[Measured]:
    """What verdicts are given on, whether the rows come from records or from the tables' collected rows."""
    return fold_repeats(name_devices(rows))


def name_devices(rows: Sequence[Measured]) -> list[Measured]:
    """Cells that ended before they could name their device get the campaign's, where it has only one."""
    names = {row.device for row in rows if row.device}
    only = names.pop() if len(names) == 1 else None
    return [row if row.device else replace(row, device=only) for row in rows]


def fold_repeats(rows: Sequence[Measured]) -> list[Measured]:
    """One row for each cell, by the law of the tables' points (tables/point.py).

    One wrong repeat makes the cell wrong. Else the repeats that passed fold to their median, those of each
    device and kernel that ran apart, and where none passed the commonest status stands.
    """
    cells: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
    for row in rows:
        options = tuple(sorted(row.options.items()))
        cells[(row.method, options, row.kernel_asked, *row.problem)].append(row)
    folded = []
    for cell in cells.values():
        passed: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
        for row in cell:
            if row.status == "passed":
                passed[row.setting].append(row)
        statuses = Counter(row.status for row in cell if row.status != "passed")
        if statuses["wrong"] or not passed:
            word = "wrong" if statuses["wrong"] else statuses.most_common(1)[0][0]
            folded.append(next(row for row in cell if row.status == word))
        else:
            folded += [_folded(repeats) for repeats in passed.values()]
    return folded


def _folded(repeats: Sequence[Measured]) -> Measured:
    """The median of the times, the rate that follows from it, and the highest memory."""
    first = repeats[0]
    times = [row.time_ms for row in repeats if row.time_ms]
    memory = [row.mem_peak_mib for row in repeats if row.mem_peak_mib is not None]
    time_ms = quantile(times, 0.5) if times else None
    rate = first.tflops_per_gpu
    if rate is not None and first.time_ms and time_ms:
        rate *= first.time_ms / time_ms  # the same work in another time
    return replace(first, time_ms=time_ms, tflops_per_gpu=rate, mem_peak_mib=max(memory, default=None))
