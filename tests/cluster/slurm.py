"""A real Slurm on this one machine: nodes that differ in name and port, GPUs that are devices of nothing.

Everything lives in one folder and on the loopback address. The daemons are children of ours in the
foreground, so that stopping them is ending these children and nothing else; they also end when the test
process does. Where no Slurm can be had, `unavailable` says why.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge"]
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "munged", "unshare", "setpriv"]
START_S = 30.0
CPUS_PER_NODE = 64  # claimed, not there: the tests' ranks are many and idle


def unavailable() -> str | None:
    """Why no Slurm can be started here, or None; installs Debian's packages where they are missing."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root (namespaces and device nodes)"
    if all(map(shutil.which, PROGRAMS)):
        return None
    if shutil.which("apt-get") is None:
        return f"install {' '.join(PACKAGES)}: this is no Debian, where the tests would do it themselves"
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["apt-get", *words], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"'apt-get {' '.join(words)}' failed: {' '.join(done.stderr.split())[-300:]}"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)} still missing after the installation" if missing else None


@dataclass
class Slurm:
    """A controller, its nodes and their munge."""

    folder: Path
    num_nodes: int = 4
    gpus_per_node: int = 8
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[str]:
        return [f"node{index}" for index in range(self.num_nodes)]

    @property
    def environ(self) -> dict[str, str]:
        """What a user's shell on the login node has."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "etc/slurm.conf")}

    def start(self) -> None:
        for name in ("etc", "log", "state", "run", "dev", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.make_gpus()
        self.write_files()
        self.start_munge()
        self.child("slurmctld", ["slurmctld", "-D", "-c", "-f", str(self.folder / "etc/slurm.conf")])
        for node in self.nodes:
            self.start_node(node)
        self.wait_idle()

    def start_node(self, node: str) -> None:
        """A slurmd in its own host name and its own view of /etc; processes, network and files are shared."""
        script = (
            'hostname "$1"; mount --bind "$2/hosts" /etc/hosts; mount --bind "$2/etc" /etc/slurm; '
            'exec slurmd -D -N "$1"'
        )
        inside = ["sh", "-ec", script, "sh", node, str(self.folder)]
        self.child(node, ["unshare", "--uts", "--mount", "--propagation", "private", *inside])

    def kill_node(self, node: str) -> None:
        """A node's power goes off: its slurmd and everything that it started are gone at once."""
        slurmd = self.children.pop(node)
        for pid in processes_of_node(slurmd.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        slurmd.wait()

    def make_gpus(self) -> None:
        for index in range(self.gpus_per_node):
            path = self.folder / f"dev/nvidia{index}"
            if not path.exists():  # a plain file would not do: Slurm sets no CUDA_VISIBLE_DEVICES for it
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))

    def write_files(self) -> None:
        last = self.num_nodes - 1
        hosts = "".join(f"127.0.0.1 {node}\n" for node in self.nodes)
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + hosts)
        (self.folder / "etc/gres.conf").write_text(
            f"NodeName=node[0-{last}] Name=gpu Type=none "
            f"File={self.folder}/dev/nvidia[0-{self.gpus_per_node - 1}]\n"
        )
        ports = free_ports(1 + self.num_nodes)
        lines = {
            **{"ClusterName": "onehost", "SlurmctldHost": "localhost(127.0.0.1)", "SlurmctldPort": ports[0]},
            **{"SlurmUser": "root", "SlurmdUser": "root", "AuthType": "auth/munge"},
            "AuthInfo": f"socket={self.folder}/munge/socket",
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/run/%n",
            "SlurmctldPidFile": f"{self.folder}/run/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/run/%n.pid",
            **{"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none"},
            **{"SwitchType": "switch/none", "MpiDefault": "none", "GresTypes": "gpu"},
            **{"AccountingStorageType": "accounting_storage/none", "JobCompType": "jobcomp/none"},
            **{"SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core"},
            "SchedulerParameters": "sched_min_interval=0,bf_interval=1,sched_interval=1,batch_sched_delay=0",
            **{"SlurmdParameters": "config_overrides", "ReturnToService": 2, "MinJobAge": 900},
            **{"SlurmdTimeout": 10, "KillWait": 4, "JobRequeue": 1},
            # Every daemon listens on loopback alone.
            "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        # One address and a port each. An address each would make an srun inside a job wait for ever: it
        # listens on its node's address, and what comes back is sent to 127.0.0.1.
        for node, port in zip(self.nodes, ports[1:]):
            text += (
                f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS_PER_NODE} "
                f"RealMemory=20000 Gres=gpu:none:{self.gpus_per_node}\n"
            )
        text += f"PartitionName=gpu Nodes=node[0-{last}] Default=YES MaxTime=240 State=UP\n"
        (self.folder / "etc/slurm.conf").write_text(text)

    def start_munge(self) -> None:
        home = self.folder / "munge"
        key = home / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for path in (home, key):
            shutil.chown(path, "munge", "munge")
        home.chmod(0o755)
        options = {
            "key-file": key,
            "socket": home / "socket",
            "pid-file": home / "pid",
            "seed-file": home / "seed",
        }
        options |= {"log-file": home / "log"}
        words = [f"--{name}={value}" for name, value in options.items()]
        become = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
        self.child("munged", [*become, "munged", "--foreground", *words])
        wait_for(lambda: (home / "socket").exists(), "munge's socket")

    def child(self, name: str, argv: list[str]) -> None:
        with open(self.folder / f"log/{name}.log", "ab") as log:
            self.children[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                start_new_session=True,
            )

    def wait_idle(self) -> None:
        def idle() -> bool:
            return set(self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) == set(self.nodes)

        wait_for(idle, "all nodes to be idle")

    def ask(self, *argv: str) -> str:
        """The output of a Slurm command."""
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """Job id -> state, of all that the controller remembers."""
        lines = self.ask("squeue", "-h", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def show(self, job: str) -> dict[str, str]:
        """What Slurm itself says of a job."""
        text = self.ask("scontrol", "show", "job", "-d", job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def stop(self) -> None:
        """End the daemons that we started, nodes first, and whatever their jobs left."""
        for name in [*self.nodes, "slurmctld", "munged"]:
            child = self.children.pop(name, None)
            if child is None or child.poll() is not None:
                continue
            left = processes_of_node(child.pid) if name in self.nodes else descendants(child.pid)
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def processes_of_node(slurmd: int) -> list[int]:
    """A slurmd and all that it started. slurmstepd leaves its parent, but not the node's own host name."""

    def name_space(pid: int | str) -> str:
        return os.readlink(f"/proc/{pid}/ns/uts")

    own = name_space(slurmd)
    if own == name_space("self"):  # not started yet: it has no host name of its own, and no job
        return [slurmd, *descendants(slurmd)]
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and name_space(entry.name) == own:
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    found = []
    for child in map(int, children):
        found += [child, *descendants(child)]
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(ready, what: str, seconds: float = START_S, every: float = 0.1) -> None:  # type: ignore[no-untyped-def]
    """Wait until `ready()`; say what it was about when it does not come."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(every)
