"""`snakemake --profile slurm` on a real Slurm: from a config to tables, and what Slurm says was allocated."""

from __future__ import annotations

import csv
import re

import pytest
from campaign import SHAPE, Checkout
from slurm import wait_for

from ringmark.bench import progress

pytestmark = pytest.mark.cluster


def test_the_local_grid_on_four_nodes_becomes_tables(checkout: Checkout) -> None:
    native = ["native", "usp+placement=ring_first", "burst+layout=striped", "burst+opt_bwd=false"]
    quick = {"max_iterations": 3, "phases": ["fwd", "fwd_bwd"], "preflight": True, "cells_per_job": 64}
    checkout.write_config(
        native, seqlen_global=[256, 512], shapes=[SHAPE | {"num_heads_q": 8, "num_heads_kv": 8}], **quick
    )
    checkout.run()

    with open(checkout.folder / "results/test/cells.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows} == {"passed"}
    assert len(rows) == 4 * len({row["row"] for row in rows}) > 4 * 8
    table = (checkout.folder / "paper_tables/test.md").read_text()
    assert "BurstAttention" in table

    assert (checkout.folder / "results/test/preflight.json").exists()
    (world,) = checkout.worlds()  # one world measured them all
    hosts = {rank: at.host for rank, at in progress.ranks(world, 8).items()}
    assert hosts == {rank: f"node{rank // 2}" for rank in range(8)}
    burst = checkout.records()["burst"]
    variables = burst.environment["nodes"][0]["variables"]
    assert variables["RINGMARK_FABRIC"] == "tcp"
    assert variables["NCCL_NET"] == "Socket"
    assert [node["hostname"] for node in burst.environment["nodes"]] == checkout.slurm.nodes

    checkout.run()  # again: nothing runs
    assert "Nothing to be done" in checkout.log()
    assert len(checkout.slurm_jobs()) == 1


def test_thirty_two_ranks_and_what_slurm_says_of_them(checkout: Checkout) -> None:
    checkout.write_config(
        ["burst", "usp+placement=head_first", "usp+placement=ring_first"],
        mesh={"nodes": 4, "gpus": 8},
        seqlen_global=[1024],
        shapes=[SHAPE | {"num_heads_q": 8, "num_heads_kv": 8}],
        phases=["fwd_bwd"],
        max_iterations=3,
        cell_limit_s=200.0,
        start_limit_s=250.0,
    )
    # What is printed before anything is submitted is what is submitted.
    checkout.run("-n")
    (promised,) = re.findall(r"one job: +sbatch (.*)", checkout.log())
    driver = checkout.start("--verbose")
    running = allocated(checkout)
    assert driver.wait(300) == 0, checkout.log()
    (called,) = re.findall(r"sbatch call: sbatch (.*)", checkout.log())
    geometry = "--(nodes|ntasks|gpus|cpus|exclusive|requeue)"
    told = [word for word in promised.split() if re.match(geometry, word)]
    assert len(told) == 7
    assert [word for word in told if word not in called.split()] == []

    statuses = {row: found.status.value for row, found in checkout.rows().items()}
    assert set(statuses) == {"single", "burst", "usp+placement=head_first", "usp+placement=ring_first"}
    assert set(statuses.values()) == {"passed"}, {row: one.failure for row, one in checkout.rows().items()}
    for found in checkout.rows().values():
        assert found.check is not None
        assert found.check.ok

    (job,) = checkout.slurm_jobs()
    assert job["JobState"] == "COMPLETED"
    assert (job["NumNodes"], job["NumTasks"], job["NodeList"]) == ("4", "4", "node[0-3]")
    assert running["GRES"] == "gpu:none:8(IDX:0-7)"  # on each node, while it ran
    nodes = checkout.rows()["burst"].environment["nodes"]
    assert [node["variables"]["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["0,1,2,3,4,5,6,7"] * 4
    assert job["TresPerNode"].endswith("gpu:8")
    assert job["NtasksPerN:B:S:C"].startswith("1:")
    (world,) = checkout.worlds()
    by_host: dict[str, list[int]] = {}
    for rank, at in progress.ranks(world, 32).items():
        by_host.setdefault(at.host, []).append(rank)
    assert by_host == {f"node{node}": list(range(8 * node, 8 * node + 8)) for node in range(4)}


def test_a_single_node_job_needs_no_mpi(checkout: Checkout) -> None:
    said = checkout.ringmark("doctor", "--cluster", "cluster.yaml")
    assert "ok       partition gpu: 4 nodes can be used" in said
    assert "missing" not in said
    checkout.write_config(["ring"], mesh={"nodes": 1, "gpus": 2}, max_iterations=3)
    driver = checkout.start()
    running = allocated(checkout)
    assert driver.wait(300) == 0, checkout.log()
    assert set(checkout.statuses().values()) == {"passed"}
    assert (running["NumNodes"], running["NumTasks"]) == ("1", "1")
    assert running["TresPerNode"].endswith("gpu:2")  # asked for; exclusive gives all, the ranks' step has two
    (node,) = checkout.records()["ring"].environment["nodes"]
    assert node["variables"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def allocated(checkout: Checkout) -> dict[str, str]:
    """What Slurm says of the checkout's job while it runs: only then does it name the devices."""

    def running() -> bool:
        return [one["JobState"] for one in checkout.slurm_jobs()] == ["RUNNING"]

    wait_for(running, "the job to run", 60)
    return checkout.slurm_jobs()[0]
