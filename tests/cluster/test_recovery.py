"""What goes wrong on a cluster, each for real: nothing is lost, nothing runs twice side by side."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from campaign import Checkout
from slurm import wait_for

pytestmark = pytest.mark.cluster
METHODS = ["ring", "zigzag", "burst"]
ALL = {"single", *METHODS}


def states(checkout: Checkout) -> list[str]:
    """The states of the checkout's Slurm jobs, oldest first."""
    jobs = sorted(checkout.slurm_jobs(), key=lambda job: int(job["JobId"]))
    return [job["JobState"] for job in jobs]


def untouched(checkout: Checkout) -> dict[Path, int]:
    """Record file -> when it was written."""
    return {path: path.stat().st_mtime_ns for path in checkout.folder.glob("results/test/records/**/*.json")}


def wait_for_record(checkout: Checkout, count: int = 1) -> None:
    wait_for(lambda: len(untouched(checkout)) >= count, f"{count} records", 150)


def test_a_killed_and_a_hanging_rank_cost_their_own_cells(checkout: Checkout) -> None:
    checkout.write_config(METHODS, cell_limit_s=15.0)
    driver = checkout.start()
    first, ranks = checkout.wait_for_stage("timing", *METHODS)
    os.kill(ranks[3].pid, signal.SIGKILL)
    second, ranks = checkout.wait_for_stage("timing", *(set(METHODS) - {first}))
    os.kill(ranks[5].pid, signal.SIGSTOP)
    assert driver.wait(300) == 0, checkout.log()

    found = checkout.records()
    expected = dict.fromkeys(ALL, "passed") | {first: "crashed", second: "timeout"}
    assert checkout.statuses() == expected
    killed, hung = found[first].failure, found[second].failure
    assert killed is not None
    assert hung is not None
    assert (killed.reason, killed.rank) == ("rank 3 was killed by SIGKILL", 3)
    assert hung.rank == 5
    assert "rank 5 has stopped answering" in hung.reason
    assert states(checkout) == ["COMPLETED"]  # one allocation served them all
    assert checkout.alive() == []  # the stopped rank was ended too
    assert (checkout.folder / "paper_tables/test.md").exists()


def test_a_method_that_fails_on_one_node_costs_its_own_cell(checkout: Checkout) -> None:
    # What a broken installation on one node is: Python finds it there, and only rank 2 runs into it.
    broken = """
import os
if os.environ.get("RANK") == "2":
    from ringmark.methods import stripe
    def attend(self, q, k, v, scale):
        raise RuntimeError("the library of this node is broken")
    stripe.Method.attend = attend
"""
    (checkout.folder / "sitecustomize.py").write_text(broken)
    checkout.variables["PYTHONPATH"] = str(checkout.folder)
    checkout.write_config(["ring", "stripe"], max_iterations=3)
    checkout.run()
    assert checkout.statuses() == {"single": "passed", "ring": "passed", "stripe": "crashed"}
    failure = checkout.records()["stripe"].failure
    assert failure is not None
    assert (failure.reason, failure.rank) == ("RuntimeError: the library of this node is broken", 2)
    assert "crashed" in (checkout.folder / "paper_tables/test.md").read_text()


def test_an_interrupt_cancels_the_job_and_a_rerun_measures_the_rest(checkout: Checkout) -> None:
    checkout.write_config(METHODS)
    driver = checkout.start()
    wait_for_record(checkout)
    os.killpg(driver.pid, signal.SIGINT)
    assert driver.wait(60) != 0
    wait_for(lambda: states(checkout) == ["CANCELLED"], "the job to be cancelled")
    wait_for(lambda: not checkout.alive(), "the ranks to be gone")
    kept = untouched(checkout)
    assert 1 <= len(kept) < len(ALL)
    assert set(checkout.statuses().values()) == {"passed"}  # to be interrupted is no failure of a cell

    checkout.run()
    assert checkout.statuses() == dict.fromkeys(ALL, "passed")
    assert {path: when for path, when in untouched(checkout).items() if path in kept} == kept
    assert states(checkout) == ["CANCELLED", "COMPLETED"]


def test_a_driver_killed_hard_leaves_an_orphan_that_the_next_run_adopts(checkout: Checkout) -> None:
    checkout.write_config(METHODS)
    driver = checkout.start()
    wait_for_record(checkout)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert states(checkout) == ["RUNNING"]  # its job lives on

    checkout.run("--unlock")
    assert states(checkout) == ["RUNNING"]
    checkout.run()
    assert "still in Slurm" in checkout.log()
    assert checkout.statuses() == dict.fromkeys(ALL, "passed")
    assert states(checkout) == ["COMPLETED"]  # nothing was submitted beside it, nor after it
    assert len(checkout.worlds()) == 1
    assert (checkout.folder / "paper_tables/test.md").exists()


def test_a_job_that_is_queued_again_goes_on(checkout: Checkout) -> None:
    checkout.write_config(METHODS)
    driver = checkout.start()
    wait_for_record(checkout)
    (job,) = checkout.slurm_jobs()
    checkout.slurm.ask("scontrol", "requeue", job["JobId"])
    start_again(checkout, job["JobId"])
    assert driver.wait(300) == 0, checkout.log()
    assert checkout.statuses() == dict.fromkeys(ALL, "passed")
    assert states(checkout) == ["COMPLETED"]
    assert checkout.slurm_jobs()[0]["Restarts"] == "1"
    assert len(checkout.worlds()) == 2


def test_a_node_that_dies_blames_no_cell(checkout: Checkout) -> None:
    checkout.write_config(METHODS)
    driver = checkout.start()
    checkout.wait_for_stage("timing", *METHODS)
    (job,) = checkout.slurm_jobs()
    checkout.slurm.kill_node("node2")
    try:
        wait_for(
            lambda: "node2" in checkout.slurm.ask("sinfo", "-h", "-N", "-t", "down", "-o", "%N"),
            "a dead node",
            90,
        )
    finally:
        checkout.slurm.start_node("node2")
    start_again(checkout, job["JobId"])
    assert driver.wait(300) == 0, checkout.log()
    assert checkout.statuses() == dict.fromkeys(ALL, "passed")
    assert states(checkout) == ["COMPLETED"]
    checkout.slurm.wait_idle()


def test_a_job_that_is_told_to_end_blames_no_cell(checkout: Checkout) -> None:
    checkout.write_config(METHODS)
    driver = checkout.start()
    checkout.wait_for_stage("timing", *METHODS)
    (job,) = checkout.slurm_jobs()
    checkout.slurm.ask("scancel", "--signal=TERM", job["JobId"])  # as a preemption does, in its grace time
    assert driver.wait(300) == 0, checkout.log()
    assert checkout.statuses() == dict.fromkeys(ALL, "passed")
    assert states(checkout) == ["FAILED", "COMPLETED"]


def test_what_a_time_limit_cut_off_is_measured_in_the_next_allocation(checkout: Checkout) -> None:
    checkout.write_config(METHODS, time_limit_s=25.0)
    driver = checkout.start()
    wait_for(lambda: states(checkout) == ["RUNNING"], "the job to run", 60)
    (job,) = checkout.slurm_jobs()
    checkout.slurm.ask("scontrol", "update", f"JobId={job['JobId']}", "TimeLimit=1")
    wait_for(lambda: states(checkout)[0] == "TIMEOUT", "the time limit", 180)
    kept = untouched(checkout)
    assert driver.wait(300) == 0, checkout.log()
    assert checkout.statuses() == dict.fromkeys(ALL, "passed")
    assert states(checkout) == ["TIMEOUT", "COMPLETED"]
    assert {path: when for path, when in untouched(checkout).items() if path in kept} == kept


def start_again(checkout: Checkout, job: str) -> None:
    """A requeued job waits two minutes before it may start again; ask for it now."""
    wait_for(lambda: checkout.slurm.show(job)["JobState"] == "PENDING", "the job to be queued again", 60)
    for _ in range(20):
        checkout.slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(1)
        if checkout.slurm.show(job)["JobState"] != "PENDING":
            return
