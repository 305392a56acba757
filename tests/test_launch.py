"""cells + cluster -> argv and environment, by example for each runtime; what Slurm is asked for; fabrics."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmark import cluster, fabric, image, launch, schema, submit
from ringmark import config as configs
from ringmark.cluster import Cluster
from ringmark.errors import UserError
from ringmark.job import Job
from ringmark.launch import Place, geometry, inherited, world
from ringmark.site import image_of

SITE = Cluster("site", nodes=4, gpus_per_node=8, cpus_per_node=32, partition="gpu")
PLACE = Place(("a1", "a2", "a3", "a4"), port=20001, folder="/home/me/ringmark", user="7:8")
AGENT = ["-m", "ringmark.bench.agent"]
WORDS_4X8 = ["--nproc-per-node", "8", "--nnodes", "4", "--rendezvous", "a1:20001", "--watch-supervisor"]
WORDS_4X8 += ["--run-id", "R", "j.job.json", "0,1"]
SRUN_4X8 = [
    "srun",
    "--overlap",
    "--nodes",
    "4",
    "--ntasks",
    "4",
    "--ntasks-per-node",
    "1",
    "--cpus-per-task",
    "32",
]
SRUN_4X8 += ["--cpu-bind", "none", "--kill-on-bad-exit=1", "--job-name", "ringmark-R", "--export", "ALL"]
SRUN_4X8 += ["--nodelist", "a1,a2,a3,a4", "--gpus-per-node", "8"]


def job_of(site: Cluster | None, nodes: int = 4, gpus: int = 8, **changes: Any) -> Job:
    data: dict[str, Any] = {"campaign": "c", "mesh": {"nodes": nodes, "gpus": gpus}, "device": "cuda"}
    data["grids"] = [{"methods": ["ring"], "seqlen_global": [4096], "shapes": [{}]}]
    (job, *_) = configs.jobs(configs.from_data(data, "c"), Path("results"))
    return dataclasses.replace(job, cluster=site, **changes)


def argv(site: Cluster | None, place: Place = PLACE, **job: Any) -> list[str]:
    return world(job_of(site, **job), "j.job.json", [0, 1], "R", place).argv


def test_this_host_needs_only_the_agent() -> None:
    expected = [sys.executable, *AGENT, "--nproc-per-node", "32", "--run-id", "R", "j.job.json", "0,1"]
    assert argv(None, Place()) == expected


def test_bare_on_slurm() -> None:
    assert argv(SITE) == [*SRUN_4X8, sys.executable, *AGENT, *WORDS_4X8]


def test_one_node_has_no_rendezvous() -> None:
    found = argv(SITE, Place(("a1",), 20001), nodes=1)
    assert found[found.index("--nodes") + 1] == "1"
    assert "--rendezvous" not in found
    assert found[-7:] == ["--nproc-per-node", "8", "--watch-supervisor", "--run-id", "R", "j.job.json", "0,1"]


def test_virtual_nodes_are_one_node() -> None:
    job = job_of(SITE, nodes=2, gpus=4, virtual_nodes=True)
    assert geometry(job) == (1, 8)
    assert submit.resources(job)["nodes"] == 1


def test_a_cpu_world_and_a_site_without_gpu_accounting_ask_for_no_gpus() -> None:
    assert "--gpus-per-node" not in argv(SITE, device="cpu")
    assert "--gpus-per-node" not in argv(dataclasses.replace(SITE, request_gpus=False))


def test_modules_are_loaded_around_the_agent() -> None:
    found = argv(dataclasses.replace(SITE, modules=["cuda/12.4", "odd name"]))
    shell = found.index("bash")
    assert found[:shell] == SRUN_4X8
    script = "module load cuda/12.4 'odd name' && exec \"$@\""
    assert found[shell:] == ["bash", "-lc", script, "ringmark", sys.executable, *AGENT, *WORDS_4X8]


def test_pyxis_is_a_part_of_srun() -> None:
    site = dataclasses.replace(SITE, runtime="pyxis", mounts=["/data:/data:ro"], modules=["ignored"])
    place = dataclasses.replace(PLACE, image="/x/ringmark.sqsh", image_id="sha256:1")
    command = world(job_of(site, env={"NCCL_NET": "IB"}), "j.job.json", [0, 1], "R", place)
    rest = command.argv[len(SRUN_4X8) :]
    assert command.argv[: len(SRUN_4X8)] == SRUN_4X8
    assert rest == [
        "--container-image=/x/ringmark.sqsh",
        "--container-mounts=/home/me/ringmark:/home/me/ringmark,/data:/data:ro",
        "--container-workdir=/home/me/ringmark",
        "--no-container-mount-home",
        "--no-container-entrypoint",
        "--container-env=OMP_NUM_THREADS,PYTHONUNBUFFERED,PYTHONNOUSERSITE,RINGMARK_IMAGE_DIGEST,NCCL_NET",
        *["python3", *AGENT, *WORDS_4X8],
    ]
    assert command.env["RINGMARK_IMAGE_DIGEST"] == "sha256:1"


def test_apptainer_hands_the_environment_on_by_itself() -> None:
    site = dataclasses.replace(SITE, runtime="apptainer", mounts=["/data"])
    found = argv(site, dataclasses.replace(PLACE, image="/x/ringmark.sif"))
    binds = ["--bind", "/home/me/ringmark:/home/me/ringmark", "--bind", "/data", "--pwd", "/home/me/ringmark"]
    inside = ["/x/ringmark.sif", "python3", *AGENT, *WORDS_4X8]
    assert found == [*SRUN_4X8, "apptainer", "exec", "--nv", *binds, *inside]
    assert "--nv" not in argv(site, PLACE, device="cpu")


def test_docker_and_podman_name_every_variable() -> None:
    site = dataclasses.replace(SITE, runtime="docker", fabric="ib", container_extra=["--shm-size", "8g"])
    place = dataclasses.replace(PLACE, image="registry/ringmark:1")
    found = argv(site, place, env={"NCCL_IB_HCA": "mlx5_0,mlx5_1"})[len(SRUN_4X8) :]
    assert found[:6] == ["docker", "run", "--rm", "--init", "--name", "ringmark-R"]
    pairs = list(itertools.pairwise(found))
    for pair in [
        ("--gpus", "all"),
        ("--network", "host"),
        ("--ipc", "host"),
        ("--ulimit", "memlock=-1"),
        ("--user", "7:8"),
        ("--device", "/dev/infiniband"),
        ("--volume", "/home/me/ringmark:/home/me/ringmark"),
        ("--workdir", "/home/me/ringmark"),
        ("--env", "NCCL_IB_HCA"),  # its value comes from the client's environment: no quoting to get wrong
        ("--env", "SLURM_NODEID"),
        ("--entrypoint", "python3"),
    ]:
        assert pair in pairs, pair
    assert found[-len(WORDS_4X8) - 5 :] == [
        "--entrypoint",
        "python3",
        "registry/ringmark:1",
        *AGENT,
        *WORDS_4X8,
    ]
    podman = argv(dataclasses.replace(site, runtime="podman"), place)
    assert ("--device", "nvidia.com/gpu=all") in list(itertools.pairwise(podman))
    assert "--gpus" not in podman
    assert ("--userns", "keep-id") in list(itertools.pairwise(podman))
    as_root = argv(dataclasses.replace(site, runtime="podman"), dataclasses.replace(place, user="0:0"))
    assert "--userns" not in found + as_root
    assert "memlock=-1" in as_root
    assert "memlock=-1" not in podman


def test_docker_on_one_host_without_a_scheduler() -> None:
    site = Cluster("host", scheduler="none", runtime="docker")
    place = Place(folder="/w", user="7:8", image="ringmark:cpu")
    found = argv(site, place, nodes=2, gpus=2, device="cpu")
    assert found[0] == "docker"
    assert "--gpus" not in found
    assert "SLURM_NODEID" not in found
    assert found[found.index("--nproc-per-node") + 1] == "4"
    assert launch.leftovers(job_of(site), "R", place) == ["docker", "kill", "ringmark-R"]


def test_enroot_keeps_the_entry_point_of_the_image() -> None:
    found = argv(dataclasses.replace(SITE, runtime="enroot"), dataclasses.replace(PLACE, image="/x/r.sqsh"))
    rest = found[len(SRUN_4X8) :]
    assert rest[:5] == ["enroot", "start", "--rw", "--mount", "/home/me/ringmark:/home/me/ringmark"]
    assert ("--env", "SLURM_NODEID") in list(itertools.pairwise(rest))
    # It keeps the working directory of the image too, and a job's paths start at the checkout.
    assert rest[rest.index("/x/r.sqsh") + 1 :] == ["agent", "--folder", "/home/me/ringmark", *WORDS_4X8]


@pytest.mark.parametrize("runtime", ["docker", "podman", "enroot"])
def test_a_container_hears_of_slurms_gpus_only_where_slurm_gave_some(runtime: Any) -> None:
    site, place = dataclasses.replace(SITE, runtime=runtime), dataclasses.replace(PLACE, image="/x/r.sqsh")
    alone = Cluster("host", scheduler="none", runtime=runtime)
    assert "CUDA_VISIBLE_DEVICES" in argv(site, place)
    assert "CUDA_VISIBLE_DEVICES" not in argv(dataclasses.replace(site, request_gpus=False), place)
    assert not {"CUDA_VISIBLE_DEVICES", "SLURM_NODEID"} & set(argv(alone, place))


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer", "enroot"])
def test_the_scratch_folder_is_there_and_in_the_container(runtime: Any) -> None:
    site = dataclasses.replace(SITE, runtime=runtime, scratch="/local/me", mounts=["/local/me:/local/me"])
    rest = argv(site, dataclasses.replace(PLACE, image="/x/r"))[len(SRUN_4X8) :]
    assert rest[:5] == ["sh", "-c", 'mkdir -p "$0" && exec "$@"', "/local/me", runtime]
    assert rest.count("/local/me:/local/me") == 1  # docker refuses a place that is mounted twice


def test_how_an_allocation_was_asked_for_is_no_option_of_its_steps() -> None:
    ids = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf"}
    # `srun --ntasks-per-node 1` ends at SLURM_NTASKS_PER_GPU, --gpus-per-node at SLURM_GPUS.
    assert inherited({**ids, "SLURM_NTASKS_PER_GPU": "1", "SLURM_GPUS": "4"}, SITE) == ids


def test_a_container_gets_no_folder_of_the_host() -> None:
    environ = {"PATH": "/bin", "TMPDIR": "/job/7", "PYTHONPATH": "/site", "PYTHONHOME": "/site"}
    site = dataclasses.replace(SITE, runtime="apptainer")
    assert inherited(environ, site) == {"PATH": "/bin"}
    assert inherited(environ, dataclasses.replace(site, pass_env=["TMPDIR"])) == {
        "PATH": "/bin",
        "TMPDIR": "/job/7",
    }
    assert inherited(environ, SITE) == environ


def test_containers_are_ended_on_every_node() -> None:
    site = dataclasses.replace(SITE, runtime="podman")
    found = launch.leftovers(job_of(site), "R", PLACE)
    assert found is not None
    assert found[:2] == ["srun", "--overlap"]
    assert found[-5:] == ["--nodelist", "a1,a2,a3,a4", "podman", "kill", "ringmark-R"]
    assert launch.leftovers(job_of(SITE), "R", PLACE) is None


def test_a_world_sees_only_what_is_allowed() -> None:
    environ = {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "MINE": "1",
    }
    site = dataclasses.replace(SITE, pass_env=["MINE"])
    assert inherited(environ, site) == {"PATH": "/bin", "NCCL_DEBUG": "INFO", "MINE": "1"}
    assert inherited(environ, None) == environ


def test_variables_of_fabric_cluster_and_scratch(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("name: s\nnodes: 4\nfabric: ib\nenv: {NCCL_IB_TIMEOUT: '23'}\nscratch: /local\n")
    data: dict[str, Any] = {"campaign": "c", "mesh": {"nodes": 4, "gpus": 8}, "cluster": str(path)}
    data["grids"] = [{"methods": ["ring"], "seqlen_global": [64], "shapes": [{}]}]
    (job,) = configs.jobs(configs.from_data(data, "c"), Path("results"))
    env = launch.variables(job, PLACE)
    assert env["NCCL_NET"] == "IB"
    assert env["NCCL_IB_TIMEOUT"] == "23"  # the cluster file wins over the fabric
    assert env["TMPDIR"] == "/local"
    assert env[fabric.NAME] == "ib"
    (virtual,) = configs.jobs(
        configs.from_data({**data, "virtual_nodes": True, "mesh": {"nodes": 2, "gpus": 4}}, "c"), Path("r")
    )
    assert virtual.env["NCCL_SOCKET_IFNAME"] == "lo"


def test_a_mesh_that_is_too_large_is_told() -> None:
    with pytest.raises(UserError, match="cluster site has 4 with 8"):
        SITE.check_fits(configs.MeshShape(8, 8), virtual_nodes=False)
    SITE.check_fits(configs.MeshShape(2, 4), virtual_nodes=True)


def test_cluster_files_are_read_and_mistakes_told(tmp_path: Path) -> None:
    for path in sorted(Path("envs/clusters").glob("*.yaml")):
        cluster.read(path)
    path = tmp_path / "site.yaml"
    for text, says in (
        ("name: s\npartitoin: x", "did you mean 'partition'"),
        ("name: s\nruntime: dokcer", "docker"),
        ("name: s\nfabric: infiniband", "there is no fabric"),
        ("name: s\nscheduler: none\nnodes: 2", "choose scheduler slurm"),
        ("name: s\nscheduler: none\nruntime: pyxis", "runtime enroot"),
        ("- 1", "must be a mapping"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=says):
            cluster.read(path)


def test_the_example_explains_every_key() -> None:
    text = Path("envs/clusters/example.yaml").read_text()
    for one in dataclasses.fields(Cluster):
        assert f"\n{one.name}:" in text, one.name


def test_every_line_of_a_fabric_says_why() -> None:
    assert {"ib", "roce", "efa", "tcp", "virtual"} <= set(fabric.names())
    for name in fabric.names():
        assert len(fabric.variables(name)) > 3, name
    with pytest.raises(UserError, match="line 2 must read"):
        fabric.parse("A=1  # because\nB=2\n", "x.env")
    assert fabric.parse('A="b c"  # spaces\n', "x.env") == {"A": "b c"}


def test_what_slurm_is_asked_for() -> None:
    site = dataclasses.replace(SITE, account="proj", reservation="r", sbatch_extra=["--switches=1"])
    found = submit.resources(job_of(site))
    assert (
        found["slurm_extra"]
        == "--ntasks-per-node=1 --gpus-per-node=8 --exclusive --reservation=r --switches=1"
    )
    assert (found["nodes"], found["tasks"], found["mpi"], found["cpus_per_task"]) == (4, 4, "srun", 32)
    assert (found["slurm_partition"], found["slurm_account"]) == ("gpu", "proj")
    assert "mpi" not in submit.resources(job_of(site, nodes=1))  # the plugin refuses it for one task
    assert submit.resources(job_of(None)) == {}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"reservation": "ML-JULY"}, None),
        ({"reservation": "team-o", "sbatch_extra": ["--switches=1"]}, None),
        ({"sbatch_extra": ["--reservation", "x-Jy", "--begin=now", "--mail-user=o'J-J@x"]}, None),
        ({"sbatch_extra": ["--wckey=a b -J c"]}, None),
        ({"sbatch_extra": ["-J", "mine"]}, "job-name"),
        ({"sbatch_extra": ["-Jmine"]}, "job-name"),
        ({"sbatch_extra": ["-o", "x.log"]}, "output-file"),
    ],
)
def test_the_plugin_finds_its_own_options_only_where_they_are(change: dict, refused: str | None) -> None:
    """It looks for them anywhere in the words for sbatch: a reservation ML-JULY was a job's name to it."""
    validation = pytest.importorskip("snakemake_executor_plugin_slurm.validation")
    site = dataclasses.replace(SITE, **change)
    words = submit.resources(job_of(site))["slurm_extra"]
    assert shlex.split(words) == submit.extra_words(job_of(site), site, 8)
    job = SimpleNamespace(resources=SimpleNamespace(slurm_extra=words))
    refusal = pytest.raises(Exception, match=f"The --{refused} option is not")
    with refusal if refused else contextlib.nullcontext():
        validation.validate_slurm_extra(job)


@given(st.text(st.sampled_from("-J=o' \"a\\$"), min_size=1))
def test_a_word_for_sbatch_is_the_same_to_the_shell(word: str) -> None:
    assert shlex.split(submit.unmistakable(word)) == [word]


def test_the_image_is_the_cluster_files_or_the_one_that_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site = dataclasses.replace(SITE, runtime="apptainer")
    assert image_of(None) == image_of(SITE) == (None, None)
    assert image_of(dataclasses.replace(site, image="/x/r.sif")) == ("/x/r.sif", None)
    assert image_of(dataclasses.replace(site, image="x/r.sqsh")) == (str(tmp_path / "x/r.sqsh"), None)
    assert image_of(dataclasses.replace(site, image="host/x/r:1")) == ("host/x/r:1", None)
    with pytest.raises(UserError, match="ringmark image"):
        image_of(site)
    built = image.Image(
        "runtime", "ringmark:1", "sha256:1", "base", "docker", "r", "c", "a", "p", "build/image.sif"
    )
    image.RESULT.parent.mkdir()
    image.RESULT.write_text(json.dumps(schema.dump(built)))
    assert image_of(site) == (str(tmp_path / "build/image.sif"), "sha256:1")
