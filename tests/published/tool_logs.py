"""Small generators of the formats that other tools print, as their print statements lay them out today."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.flops import attention_flops, tflops_per_gpu

WORLD = 32


@dataclass(frozen=True)
class Run:
    """One invented run."""

    seqlen_global: int
    fwd_ms: float
    fwd_bwd_ms: float
    memory_mb: float
    heads: int = 40
    dim: int = 128

    def rate(self, phase: str) -> float:
        times = {"fwd": self.fwd_ms, "fwd_bwd": self.fwd_bwd_ms, "bwd": self.fwd_bwd_ms - self.fwd_ms}
        flops = attention_flops(
            batch=1,
            seqlen_global=self.seqlen_global,
            num_heads_q=self.heads,
            head_dim=self.dim,
            causal=True,
            phase=phase,
        )
        return tflops_per_gpu(flops, times[phase], WORLD)


RUNS = (
    Run(131072, 51.07, 171.91, 1100.5),
    Run(262144, 150.33, 511.48, 2201.0),
    Run(524288, 520.19, 1807.02, 4402.0),
)


def burst(runs: tuple[Run, ...] = RUNS, with_opt_bwd: bool = True, method: str = "burst") -> str:
    """Burst's benchmark.py: titles and shapes centred in 16, tabs before the lines of a block."""
    names = ["batch_size", "seqlen", "num_heads", "dim", "causal", "double_ring"] + ["opt_bwd"] * with_opt_bwd
    out = ""
    for run in runs:
        shape = [1, run.seqlen_global, run.heads, run.dim, True, True] + [True] * with_opt_bwd
        title, values = ("|".join(f"{x!s:^16s}" for x in row) for row in (names, shape))
        out += f"{method}\n\t{title}\n\t{values}\n"
        out += (
            f"\tTime: | forward: {run.fwd_ms / 1e3:.2f} s | forward_backward: {run.fwd_bwd_ms / 1e3:.2f} s\n"
        )
        rates = [run.rate(phase) for phase in ("fwd", "fwd_bwd", "bwd")]
        out += (
            f"\tTFLOPS| | forward: {rates[0]:.2f} TFLOPS | forward_backward: {rates[1]:.2f} TFLOPS"
            f" | backward: {rates[2]:.2f} TFLOPS\n"
        )
    return out


def log_table(runs: tuple[Run, ...] = RUNS) -> str:
    """The table of the DoubleRing and USP benchmarks, between rules of = and -."""
    head = "  Dtype   | QKV Format |  B   | Seq Len |  CP   | Window  |  FWD (ms)  | FWD+BWD (ms) "
    head += "| Memory (MB)  |  TFLOPs/s "
    rows = "".join(
        f"  {'bf16':^6}  | {'bshd':^10} | {1:^4} | {run.seqlen_global:^7} | {'True':^5} | {'None':^7} | "
        f"{run.fwd_ms:^10.2f} | {run.fwd_bwd_ms:^12.2f} | {run.memory_mb:^12.2f} | "
        f"{run.rate('fwd_bwd'):^9.2f}\n"
        for run in runs
    )
    return f"{'=' * 120}\n{head}\n{'-' * 120}\n{rows}{'=' * 120}\n"


def sp_table(runs: tuple[Run, ...] = RUNS, last_rate: str | None = None) -> str:
    """The table of the Megatron benchmark: the sequence-parallel group's size in place of CP and window."""
    head = "  Dtype   |  B   | Seq Len | SP Size |  FWD (ms)  | FWD+BWD (ms) | Memory (MB)  |  TFLOPs/s "
    rows = ""
    for run in runs:
        rate = last_rate if last_rate and run is runs[-1] else f"{run.rate('fwd_bwd'):.2f}"
        rows += (
            f"  {'bf16':^6}  | {1:^4} | {run.seqlen_global:^7} | {WORLD:^7} | {run.fwd_ms:^10.2f} | "
            f"{run.fwd_bwd_ms:^12.2f} | {run.memory_mb:^12.2f} | {rate:^9}\n"
        )
    return f"{'=' * 120}\n{head}\n{'-' * 120}\n{rows}{'=' * 120}\n"


def report(run: Run = RUNS[2], name: str = "ZigZagRingFlashAttnFunc") -> str:
    """The report of one setting, with its summary table."""
    rule = "=" * 50
    configuration = {
        "Dtype": "bf16",
        "QKV Format": "bshd",
        "Batch Size": 1,
        "Sequence Length": run.seqlen_global,
        "Num Heads": run.heads,
        "Head Dimension": run.dim,
        "GQA Groups": run.heads,
        "Attention Mask": "causal",
        "Window Size": (-1, -1),
        "Context Parallel": True,
        "World Size": WORLD,
    }
    performance = {
        "Forward Time": f"{run.fwd_ms:.2f} ms",
        "Forward+Backward Time": f"{run.fwd_bwd_ms:.2f} ms",
        "FlashAttention Kernel": "61.20 %",
        "RingComm ": "33.10 %",
        "Memory Usage": f"{run.memory_mb:.2f} MB",
        "Performance": f"{run.rate('fwd_bwd'):.2f} TFLOPs/s",
    }
    lines = ["inter intra", "[0, 8, 16, 24]     [0, 1, 2, 3, 4, 5, 6, 7]", rule]
    lines += [f"Benchmark Results for {name}", rule, "Configuration:"]
    lines += [f"  - {key}: {value}" for key, value in configuration.items()]
    lines += ["", "Performance:", *(f"  - {key}: {value}" for key, value in performance.items()), rule, ""]
    return "\n".join(lines) + "\nBenchmark Summary:\n" + log_table((run,))


def usp_page(ring_type: str = "zigzag", world: int = 8, heads: int = 16, dim: int = 128) -> str:
    """A page with a Markdown table per question, its settings in a Chinese sentence."""
    columns = [
        "ring type", "seq_len", "ulysses_degree", "ring_degree", "fwd_only", "throughput(iters/s)",
        "latency(ms/iter)", "peak memory(MB/device)", "speed(TFLOPS)",
    ]  # fmt: skip
    out = f"(设备为 {world} * H800)(bs=2, nheads={heads}, head_size={dim})\n\n- seq_len\n\n"
    out += "| " + " | ".join(columns) + " |\n|" + " :----: |" * len(columns) + "\n"
    for seqlen, forward_ms in ((8192, 3.125), (16384, 8.0), (32768, 25.0)):
        for phase, time_ms, memory in (("fwd", forward_ms, 200.1), ("fwd_bwd", 3.4 * forward_ms, 301.2)):
            flops = attention_flops(
                batch=2, seqlen_global=seqlen, num_heads_q=heads, head_dim=dim, causal=True, phase=phase
            )
            cells = [
                ring_type, seqlen, 2, 4, phase == "fwd", f"{1e3 / time_ms:.3f}", f"{time_ms:.3f}",
                f"{memory * seqlen / 8192:.1f}", f"{tflops_per_gpu(flops, time_ms, world):.1f}",
            ]  # fmt: skip
            out += "| " + " | ".join(map(str, cells)) + " |\n"
    return out + "\n"


def readme(rates: tuple[str, ...] = ("120.10", "155.20", "x")) -> str:
    """A README with its settings as bullets and a table per system, a log's name above each."""
    out = "# An attention benchmark\n\n## Requirements\n\n"
    out += "  - `registry.example/images/pytorch:25.01-py3` docker image.\n"
    out += "  - `TransformerEngine 2.2`\n\n## Settings\n - `hidden_size` = 5120\n - `num_attn_heads` = 40\n"
    out += " - `batch size` = 1\n - `seq_len` = 131072, 262144, 524288\n\n"
    out += "### Multi node (32 GPUs 4nodes 8 GPUs each)\n"
    for system in ("USP", "BurstAttention"):
        out += f"- {system}\n\n`./logs/{system.lower()}-2025_05_01_10_00_00.log`\n"
        out += "| Dtype | QKV Format |  CUDA Kernel   |  B   | Seq Len |  TFLOPs/s |\n"
        out += "|-----|-----|-----|-----|-----|-----|\n"
        for seqlen, rate in zip((131072, 262144, 524288), rates):
            out += f"|  bf16 |   bshd     | FlashAttention |  1   |  {seqlen}  |  {rate} |\n"
        out += "\n"
    return out


def prefixed(text: str, host: str) -> str:
    """As a launcher prints a node's output."""
    return "".join(f"{host}: {line}\n" for line in text.splitlines())


def wrapped(text: str, width: int = 119) -> str:
    """As a narrow terminal keeps it: what passes the width goes to a line of its own, without the prefix."""
    lines = []
    for line in text.splitlines():
        is_rule = set(line.split(": ", 1)[-1].strip()) in ({"="}, {"-"})
        lines += [line[:width], line[width:]] if is_rule and len(line) > width else [line]
    return "".join(f"{line}\n" for line in lines)


ALL = {
    "burst": burst(),
    "burst_six_columns": burst(with_opt_bwd=False),
    "log_table": "## DoubleRing\n" + log_table(),
    "sp_table": "### Megatron CP\n" + sp_table(),
    "report": report(),
    "usp_page": usp_page(),
    "readme": readme(),
}
