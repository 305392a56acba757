"""The `cpu` target: built by buildah on a base made on the spot, run by podman as another user.

It needs root, buildah, podman and mmdebstrap (Debian: apt-get install buildah podman mmdebstrap runc).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ringmark
from ringmark import image, record

ROOT = Path(__file__).parents[2]
BASE = "localhost/ringmark-test-base:bookworm"
TAG = "localhost/ringmark-test:cpu"
CALLER = 12345
CELL = ["run", "--method", "ring", "--seqlen", "256", "--heads", "2", "--head-dim", "32", "--mesh", "1x2"]
CELL += ["--iters", "6", "--out", "cell.json"]
TOOLS = ("buildah", "podman", "runc", "mmdebstrap")

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(os.geteuid() != 0, reason="building an image here needs root"),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS),
        reason=f"needs {', '.join(TOOLS)}: apt-get install them",
    ),
]


def output(*argv, **options):
    done = subprocess.run(argv, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A Debian with Python and nothing else; kept in the builder's store between runs."""
    if subprocess.run(["buildah", "inspect", "--type", "image", BASE], capture_output=True).returncode:
        archive = tmp_path_factory.mktemp("base") / "base.tar"
        packages = "--include=python3,python3-venv,ca-certificates"
        output("mmdebstrap", "--variant=minbase", packages, "bookworm", str(archive))
        output("podman", "import", str(archive), BASE)
    return BASE


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """What the lock names, fetched and held against its hashes by this machine's own pip."""
    folder = tmp_path_factory.mktemp("wheels")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
    for tag in ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"):
        argv += ["--platform", tag]
    argv += ["--requirement", str(ROOT / "envs/image-cpu.lock"), "--dest", str(folder)]
    if subprocess.run(argv, capture_output=True).returncode:
        index = "https://download.pytorch.org/whl/cpu"
        assert f"ARG TORCH_INDEX_URL={index}\n" in (ROOT / "Dockerfile").read_text()
        output(*argv, "--extra-index-url", index)
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return folder


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A copy of just the files that the image is said to be made of; nothing else can get into it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in image.inputs(ROOT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def build(checkout, base, wheels):
    options = ["--isolation=chroot", "--network=host", "--build-arg=TORCH_INDEX_URL="]
    options += [f"--volume={wheels}:/wheels:ro", f"--volume={wheels / 'pip.conf'}:/etc/pip.conf:ro"]
    argv = [sys.executable, "-m", "ringmark.cli", "image", "--target", "cpu", "--builder", "buildah"]
    argv += ["--base", base, "--tag", TAG, *(f"--option={option}" for option in options)]
    done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((checkout / image.RESULT).read_text()), done.stderr


def environment():
    """chroot isolation needs no more than this, and a build must not depend on the caller's variables."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "PYTHONPATH": str(ROOT / "src"),
    }


@pytest.fixture(scope="session")
def built(checkout, base, wheels):
    return build(checkout, base, wheels)[0]


def run(*argv, results=None, config=None, **variables):
    """`docker run --user "$(id -u):$(id -g)" -v RESULTS:/results IMAGE ...`, in podman's words."""
    command = [
        "podman",
        "--runtime",
        "runc",
        "--cgroup-manager",
        "cgroupfs",
        "run",
        "--rm",
        "--network",
        "host",
    ]
    command += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--user", f"{CALLER}:{CALLER}"]
    for source, target in ((results, "/results"), (config, "/config:ro")):
        command += ["--volume", f"{source}:{target}"] if source else []
    for name, value in variables.items():
        command += ["--env", f"{name}={value}"]
    return subprocess.run([*command, TAG, *argv], capture_output=True, text=True)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    os.chown(folder, CALLER, CALLER)
    return folder


def test_what_was_built_is_written_down(built, checkout):
    labels = json.loads(output("podman", "image", "inspect", "--format", "{{json .Labels}}", TAG))
    assert (
        built["image_id"]
        == "sha256:" + output("podman", "image", "inspect", "--format", "{{.Id}}", TAG).strip()
    )
    assert labels["org.opencontainers.image.version"] == ringmark.__version__
    packages = json.loads((checkout / built["packages"]).read_text())["components"]
    versions = {package["name"].lower().replace("_", "-"): package["version"] for package in packages}
    assert {"ringmark", "torch", "pyyaml"} <= set(versions)


def made_anew(log):
    """The steps of a build that did not come from its cache: what an edit costs."""
    step = re.compile(r"^\[\d/\d\] STEP \d+/\d+: (.*)\n(--> Using cache )?", re.MULTILINE)
    return [words for words, cached in step.findall(log) if words.startswith(("RUN", "COPY")) and not cached]


def test_an_edit_of_the_source_installs_the_package_and_nothing_else(built, checkout, base, wheels):
    again, log = build(checkout, base, wheels)
    assert again["image_id"] == built["image_id"]
    assert "image-cpu.lock" in log
    assert made_anew(log) == []
    (checkout / "src/ringmark/edited.py").write_text('"""A file that was not there before."""\n')
    edited, log = build(checkout, base, wheels)
    (checkout / "src/ringmark/edited.py").unlink()
    assert edited["image_id"] != built["image_id"]
    source, install = made_anew(log)
    assert source.startswith("COPY src ")
    assert install.startswith("RUN pip install ")
    assert "--no-deps --no-build-isolation --no-index" in install, "nothing is fetched"
    build(checkout, base, wheels)
    output("buildah", "rmi", edited["image_id"].removeprefix("sha256:"))


def test_one_cell_runs_as_the_caller(built, results):
    done = run(*CELL, results=results, RINGMARK_IMAGE_DIGEST=built["image_id"])
    assert done.returncode == 0, done.stdout + done.stderr
    kept = record.read(results / "cell.json")
    assert kept.status is record.Status.PASSED
    assert kept.cell.method == "ring"
    assert kept.environment["image_digest"] == built["image_id"]
    assert (results / "cell.json").stat().st_uid == CALLER
    assert "runs on the CPU" in done.stdout or "run on the CPU" in done.stdout


def test_a_folder_that_the_caller_may_not_write_is_told_in_one_sentence(built, tmp_path):
    tmp_path.chmod(0o755)
    done = run(*CELL, results=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "cell.json" in done.stderr or "write" in done.stderr


def test_a_campaign_runs_in_the_container(built, results):
    done = run(
        "campaign", "/config/tiny.yaml", "--results", "/results", results=results, config=tiny_config(results)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = sorted((results / "tiny").rglob("records/**/*.json"))
    assert kept
    assert {record.read(path).status for path in kept} == {record.Status.PASSED}
    assert {path.stat().st_uid for path in kept} == {CALLER}


def tiny_config(results):
    """The local campaign, cut to every native method at one length."""
    config = yaml.safe_load((ROOT / "config/local.yaml").read_text())
    config["campaign"] = "tiny"
    config["grids"] = [
        {**config["grids"][0], "methods": ["native"], "seqlen_global": [256], "phases": ["fwd"]}
    ]
    folder = results.parent / "config"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    return folder
