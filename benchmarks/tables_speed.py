"""How long ten thousand records take to collect and to render, and how much memory that needs.

    python benchmarks/tables_speed.py [--records 10000]

Made-up records are written to a temporary folder first; each verb then runs three times in a process of its
own. docs/tables.md has what this printed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import make_records  # noqa: E402  (after the path to it)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the verbs of tables on made-up records.")
    parser.add_argument("--records", type=int, default=10_000)
    asked = parser.parse_args()
    os.fsync = lambda _: None  # type: ignore[assignment]  # a made-up record need not survive a power cut
    with tempfile.TemporaryDirectory() as folder:
        campaign = make_records.write_campaign(Path(folder, "many"), make_records.many(asked.records))
        size_mib = sum(path.stat().st_size for path in campaign.rglob("*.json")) / 2**20
        print(f"{asked.records} records, {size_mib:.0f} MiB, {os.cpu_count()} cores")
        out = ["--out", str(Path(folder, "tables")), "--templates", str(ROOT / "paper_tables/templates")]
        for words in (["collect"], ["render", *out], ["render", "--check", *out], ["report"]):
            timed(words[0], str(campaign), words[1:])


def timed(verb: str, campaign: str, options: list[str], runs: int = 3) -> None:
    """Run a verb; print its wall time, its processor time, and the most memory of its processes together.

    On a busy machine the wall time says little; the processor time over two cores is its floor.
    """
    walls, processor, peaks = [], [], []
    for _ in range(runs):
        start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "ringmark.cli", verb, campaign, *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            watcher = Watcher(process.pid)
            watcher.start()
            if process.wait():
                raise SystemExit(f"{verb} failed")
            walls.append(time.perf_counter() - start)
            watcher.join()
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
        peaks.append(watcher.peak_mib)
    name = f"{verb} --check" if "--check" in options else verb
    spans = f"{min(walls):.2f} to {max(walls):.2f} s, {min(processor):.2f} s of processor"
    print(f"{name:15} {spans}, at most {max(peaks):.0f} MiB")


class Watcher(threading.Thread):
    """Samples the proportional memory of a process and its children until it ends (Linux)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak_mib = pid, 0.0

    def run(self) -> None:
        while Path(f"/proc/{self.pid}/status").exists():
            family = [self.pid, *children(self.pid)]
            self.peak_mib = max(self.peak_mib, sum(memory_mib(pid) for pid in family))
            time.sleep(0.02)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def memory_mib(pid: int) -> float:
    """A page that two processes share counts half for each."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
