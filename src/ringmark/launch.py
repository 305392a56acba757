"""How a world of ranks is started: cells + cluster -> argv and environment. Pure: it starts nothing.

    srun (one task a node)  ->  modules  ->  scratch  ->  container  ->  agent  ->  this node's ranks

Each arrow is one function below and adds words in front; on one host without a scheduler only the agent
is left.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringmark.cluster import Cluster, real_geometry
from ringmark.job import Job

# What a rank may know of the shell that started it; a cluster file's pass_env adds to it. A key or token
# that happens to be in a login shell stays there.
KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "MODULEPATH"),
    # Which allocation it is. How it was asked for (SLURM_GPUS, SLURM_NTASKS_PER_GPU, ...) srun would take for
    # options of the step, against those that it is given.
    *("SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER", "SLURM_JOB_ID", "SLURM_JOBID"),
    *("SLURM_STEP_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES"),
}
KEPT_PREFIXES = (
    *("NCCL_", "TORCH", "PYTORCH_", "CUDA_", "OMP_", "GLOO_", "UCX_", "FI_", "NVTE_", "TRITON_"),
    *("NVIDIA_", "MKL_", "LC_", "PYTHON", "LMOD_", "MODULES", "RINGMARK_", "XDG_"),
    *("ENROOT_", "APPTAINER_", "SINGULARITY_", "DOCKER_"),
)
# What srun tells each task, which a container must hear too.
TASK_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_PROCID"),
    *("SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES"),
)
# What of the host would lead a container astray: folders that are not in it, and another Python's packages.
OF_THE_HOST = {"TMPDIR", "PYTHONPATH", "PYTHONHOME"}
AGENT = ("-m", "ringmark.bench.agent")
RDMA_FABRICS = ("ib", "roce", "efa")


@dataclass(frozen=True)
class Command:
    """What to execute: the words, and the variables to add to the environment."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Place:
    """Where a world starts: its nodes (none: this host), a free port on the first, folder, user, image."""

    hosts: tuple[str, ...] = ()
    port: int = 0
    folder: str = "."
    user: str = "0:0"
    image: str | None = None
    image_id: str | None = None


def world(job: Job, job_file: str, items: Sequence[int], run_id: str, place: Place = Place()) -> Command:
    """The command that starts a job's ranks for some of its items."""
    env = variables(job, place)
    site = job.cluster
    words = agent(job, job_file, items, run_id, place)
    if site is None:
        return Command([sys.executable, *AGENT, *words], env)
    argv = with_modules(site, with_scratch(site, in_container(job, site, words, env, run_id, place)))
    return Command(with_srun(job, site, argv, env, run_id, place), env)


def agent(job: Job, job_file: str, items: Sequence[int], run_id: str, place: Place) -> list[str]:
    """The words of the agent that starts one node's ranks."""
    nodes, ranks = geometry(job)
    words = ["--nproc-per-node", str(ranks)]
    if nodes > 1:
        words += ["--nnodes", str(nodes), "--rendezvous", f"{place.hosts[0]}:{place.port}"]
    if job.cluster is not None:
        words.append("--watch-supervisor")
    return [*words, "--run-id", run_id, job_file, ",".join(map(str, items))]


def geometry(job: Job) -> tuple[int, int]:
    """Nodes, and ranks on each: without a scheduler, and with virtual nodes, everything is on one."""
    scattered = job.cluster is not None and job.cluster.scheduler == "slurm"
    return real_geometry(job.mesh, job.virtual_nodes or not scattered)


def variables(job: Job, place: Place) -> dict[str, str]:
    """The variables that every rank is given."""
    env = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    site = job.cluster
    if site is not None and site.scratch:
        env |= {"TMPDIR": site.scratch, "TRITON_CACHE_DIR": f"{site.scratch}/triton"}
    if site is not None and site.runtime != "bare":
        env["PYTHONNOUSERSITE"] = "1"  # packages in a home folder are not those of the image
        if place.image_id:
            env["RINGMARK_IMAGE_DIGEST"] = place.image_id
    return {**env, **job.env}


def inherited(environ: Mapping[str, str], site: Cluster | None) -> dict[str, str]:
    """What a world sees of the surrounding environment: all on one's own host, the allow-list on a site."""
    if site is None:
        return dict(environ)
    left = set() if site.runtime == "bare" else OF_THE_HOST

    def kept(name: str) -> bool:
        return name in site.pass_env or (
            name not in left and (name in KEPT or name.startswith(KEPT_PREFIXES))
        )

    return {name: value for name, value in environ.items() if kept(name)}


def with_modules(site: Cluster, argv: list[str]) -> list[str]:
    """Load the site's modules first; a login shell knows `module`."""
    if not site.modules or site.runtime == "pyxis":  # there srun itself enters the container
        return argv
    script = f'module load {shlex.join(site.modules)} && exec "$@"'
    return ["bash", "-lc", script, "ringmark", *argv]


def with_scratch(site: Cluster, argv: list[str]) -> list[str]:
    """Make the scratch folder before a container wants to mount it; elsewhere the agent makes it."""
    if site.runtime in ("bare", "pyxis") or not site.scratch:
        return argv
    return ["sh", "-c", 'mkdir -p "$0" && exec "$@"', site.scratch, *argv]


def folders(site: Cluster, place: Place) -> list[str]:
    """What a container sees of its node, under the same paths; pyxis can mount only what is there already."""
    scratch = [f"{site.scratch}:{site.scratch}"] if site.scratch and site.runtime != "pyxis" else []
    return list(dict.fromkeys([f"{place.folder}:{place.folder}", *scratch, *site.mounts]))


def in_container(
    job: Job, site: Cluster, words: list[str], env: Mapping[str, str], run_id: str, place: Place
) -> list[str]:
    """The agent inside the site's runtime; the folder has the same path inside and outside."""
    mounts = folders(site, place)
    image, gpus = place.image or "", job.device != "cpu"
    if site.runtime in ("docker", "podman"):
        return docker(job, site, words, env, run_id, place)
    if site.runtime == "apptainer":  # hands the environment on by itself
        binds = [word for mount in mounts for word in ("--bind", mount)]
        nv = ["--nv"] if gpus else []
        argv = ["apptainer", "exec", *nv, *binds, "--pwd", place.folder, *site.container_extra, image]
        return [*argv, "python3", *AGENT, *words]
    if site.runtime == "enroot":
        binds = [word for mount in mounts for word in ("--mount", mount)]
        names = [word for name in [*env, *told_by_slurm(job, site)] for word in ("--env", name)]
        # enroot keeps the image's entry point, which is `ringmark`, and its working directory.
        inside = [image, "agent", "--folder", place.folder, *words]
        return ["enroot", "start", "--rw", *binds, *names, *site.container_extra, *inside]
    return [sys.executable if site.runtime == "bare" else "python3", *AGENT, *words]


def docker(
    job: Job, site: Cluster, words: list[str], env: Mapping[str, str], run_id: str, place: Place
) -> list[str]:
    """docker and podman share their words."""
    argv = [
        site.runtime,
        "run",
        "--rm",
        "--init",
        "--name",
        step_name(run_id),
        "--network",
        "host",
        "--ipc",
        "host",
    ]
    argv += ["--user", place.user]
    if site.runtime == "podman" and not place.user.startswith("0:"):
        # Rootless: an id would else be another one outside, to whom the checkout is closed, and no limit can
        # be raised, which ends the start; the container has those that podman was started with.
        argv += ["--userns", "keep-id"]
    else:
        argv += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    if job.device != "cpu":
        cdi = site.cdi or site.runtime == "podman"
        argv += ["--device", "nvidia.com/gpu=all"] if cdi else ["--gpus", "all"]
    if site.fabric in RDMA_FABRICS:
        argv += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
    for mount in folders(site, place):
        argv += ["--volume", mount]
    argv += ["--workdir", place.folder]
    for name in [*env, *told_by_slurm(job, site)]:
        argv += ["--env", name]  # a name alone takes the value from the client's environment
    return [*argv, *site.container_extra, "--entrypoint", "python3", place.image or "", *AGENT, *words]


def with_srun(
    job: Job, site: Cluster, argv: list[str], env: Mapping[str, str], run_id: str, place: Place
) -> list[str]:
    """One task a node, all ended when one fails; the step bears the world's name, so that it can be found."""
    if site.scheduler != "slurm":
        return argv
    nodes, ranks = geometry(job)
    # --overlap: a supervisor on one node is a step itself, and would otherwise hold what the ranks need.
    srun = ["srun", "--overlap", "--nodes", str(nodes), "--ntasks", str(nodes), "--ntasks-per-node", "1"]
    srun += ["--cpus-per-task", str(site.cpus_per_node), "--cpu-bind", "none", "--kill-on-bad-exit=1"]
    srun += ["--job-name", step_name(run_id), "--export", "ALL"]
    if place.hosts:
        srun += ["--nodelist", ",".join(place.hosts[:nodes])]
    if asks_for_gpus(job, site):
        srun += ["--gpus-per-node", str(ranks)]
    if site.runtime == "pyxis":
        mounts = ",".join(folders(site, place))
        srun += [f"--container-image={place.image}", f"--container-mounts={mounts}"]
        srun += [f"--container-workdir={place.folder}", "--no-container-mount-home"]
        srun += ["--no-container-entrypoint", f"--container-env={','.join(env)}", *site.container_extra]
    return [*srun, *site.srun_extra, *argv]


def leftovers(job: Job, run_id: str, place: Place) -> list[str] | None:
    """The command that ends a world's containers on all its nodes: docker's outlive whoever started them."""
    site = job.cluster
    if site is None or site.runtime not in ("docker", "podman"):
        return None
    argv = [site.runtime, "kill", step_name(run_id)]
    nodes, _ = geometry(job)
    if site.scheduler != "slurm":
        return argv
    each = ["--nodes", str(nodes), "--ntasks", str(nodes), "--ntasks-per-node", "1"]
    return ["srun", "--overlap", *each, "--nodelist", ",".join(place.hosts[:nodes]), *argv]


def told_by_slurm(job: Job, site: Cluster) -> list[str]:
    """Variables that srun gives to a task. None that it does not give: enroot would hand it on as empty, and
    an empty CUDA_VISIBLE_DEVICES hides every GPU."""
    if site.scheduler != "slurm":
        return []
    return [*TASK_VARIABLES, *(["CUDA_VISIBLE_DEVICES"] if asks_for_gpus(job, site) else [])]


def asks_for_gpus(job: Job, site: Cluster) -> bool:
    """CPU worlds want none; a site without GPU accounting hands out whole nodes."""
    return job.device != "cpu" and site.request_gpus


def step_name(run_id: str) -> str:
    return f"ringmark-{run_id}"
