"""`ringmark image` with stand-ins for the builders: what they are asked, and what is written down."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringmark import image
from ringmark.commands import doctor
from ringmark.commands.image import source_revision
from ringmark.errors import UserError

ROOT = Path(__file__).parents[1]
DIGEST = "sha256:" + hashlib.sha256(b"a base").hexdigest()
IMAGE_ID = "sha256:" + hashlib.sha256(b"an image").hexdigest()
# Logs its words; answers each question as the real program does.
STAND_IN = """#!{python}
import json, os, sys
words = sys.argv[1:]
with open(os.environ["ASKED"], "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *words]) + "\\n")
if os.environ.get("FAIL") == words[0]:
    sys.exit(7)
if "--iidfile" in words:
    open(words[words.index("--iidfile") + 1], "w").write("{image_id}")
if "inspect" in words:
    print("{digest}" if "{{{{.FromImageDigest}}}}" in words else "registry.example/name@{digest}")
if words[0] == "info":
    print(os.environ.get("DRIVER", "[[Backing Filesystem extfs]]"))
if "pip" in words:
    print(json.dumps([{{"name": "torch", "version": "2.4.0"}}]))
for word in words:
    file = word.removeprefix("oci-archive:")
    if file.endswith((".sif", ".sqsh", ".oci.tar")):
        # enroot writes over nothing; the others do
        open(file, "x" if file.endswith(".sqsh") else "a").write("archive")
"""


@pytest.fixture
def place(tmp_path):
    """A checkout with the image's files, and a folder for stand-ins; `make` puts one there."""
    for name in image.inputs(ROOT):
        if not name.startswith("src/") and (ROOT / name).exists():
            (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def ringmark_image(place, *words, programs=("docker",), **variables):
    """Run the command; gives (finished process, what the stand-ins were asked, what was written)."""
    for name in programs:
        text = STAND_IN.format(python=sys.executable, image_id=IMAGE_ID, digest=DIGEST)
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    asked = place / "asked"
    asked.write_text("")
    env = {"PATH": str(place / "bin"), "ASKED": str(asked), "PYTHONPATH": str(ROOT / "src"), **variables}
    argv = [sys.executable, "-m", "ringmark.cli", "image", *words]
    done = subprocess.run(argv, cwd=place / "checkout", env=env, capture_output=True, text=True)
    result = place / "checkout" / image.RESULT
    written = json.loads(result.read_text()) if result.exists() else None
    return done, [json.loads(line) for line in asked.read_text().splitlines()], written


@pytest.mark.parametrize("builder", image.BUILDERS)
def test_the_base_is_pinned_at_the_first_pull_and_never_pulled_by_tag_again(place, builder):
    base = image.default_base((ROOT / "Dockerfile").read_text(), "runtime")
    done, asked, written = ringmark_image(place, programs=[builder])
    assert done.returncode == 0, done.stderr
    assert [builder, "pull", base] in asked
    assert written["base"] == f"{base}@{DIGEST}"
    assert written["image_id"] == IMAGE_ID
    assert f"{base}@{DIGEST}" in (place / "checkout" / image.PINS).read_text().splitlines()
    assert "first pull" in done.stderr
    build = next(words for words in asked if "--iidfile" in words)
    assert f"BASE_IMAGE={base}@{DIGEST}" in build
    assert build[1] == {"docker": "build", "podman": "build", "buildah": "bud"}[builder]
    done, asked, _ = ringmark_image(place, programs=[builder])
    assert done.returncode == 0
    assert not [words for words in asked if "pull" in words]


def test_the_packages_are_written_as_a_bill_of_materials(place):
    _, _, written = ringmark_image(place, "--target", "cpu", programs=["podman"])
    assert written["target"] == "cpu"
    bill = json.loads((place / "checkout" / written["packages"]).read_text())
    assert bill["components"][0]["purl"] == "pkg:pypi/torch@2.4.0"


def test_attestations_are_asked_for_where_the_builder_keeps_them(place):
    _, asked, written = ringmark_image(place, DRIVER="[[driver-type io.containerd.snapshotter.v1]]")
    build = next(words for words in asked if "--iidfile" in words)
    assert {"--sbom=true", "--provenance=mode=max"} <= set(build)
    assert written["attestations"] == "sbom and provenance"
    _, asked, written = ringmark_image(place)
    assert "--sbom=true" not in next(words for words in asked if "--iidfile" in words)
    assert written["attestations"].startswith("none")


@pytest.mark.parametrize(
    ("builder", "runtime", "kind", "source"),
    [
        ("docker", "apptainer", "sif", "docker-daemon:localhost/x:1"),
        ("podman", "apptainer", "sif", "oci-archive:build/image.oci.tar"),
        ("buildah", "apptainer", "sif", "oci-archive:build/image.oci.tar"),
        ("docker", "enroot", "sqsh", "dockerd://localhost/x:1"),
        ("podman", "pyxis", "sqsh", "podman://localhost/x:1"),
    ],
)
def test_a_file_for_the_runtime_is_made_from_the_image(place, builder, runtime, kind, source):
    tool = "apptainer" if kind == "sif" else "enroot"
    words = ["--runtime", runtime, "--tag", "localhost/x:1"]
    for _ in range(2):  # again: the file of the last build is there
        done, asked, written = ringmark_image(place, *words, programs=[builder, tool])
        assert done.returncode == 0, done.stderr
    assert written["archive"] == f"build/image.{kind}"
    assert (place / "checkout" / written["archive"]).exists()
    assert source in next(words for words in asked if words[0] == tool)
    assert not list((place / "checkout/build").glob("*.oci.tar"))


def test_auto_passes_over_a_docker_without_its_daemon(place):
    done, _, written = ringmark_image(place, programs=["docker", "podman"], FAIL="info")
    assert done.returncode == 0, done.stderr
    assert written["builder"] == "podman"


@pytest.mark.parametrize(
    ("words", "programs", "variables", "told"),
    [
        ([], [], {}, "install one"),
        ([], ["docker"], {"FAIL": "info"}, "start docker's daemon"),
        (
            ["--builder", "docker"],
            ["docker"],
            {"FAIL": "info"},
            "docker does not work here: install or start it",
        ),
        (["--builder", "buildah"], ["podman"], {}, "choose --builder podman"),
        (["--runtime", "apptainer"], ["docker"], {}, "apptainer is not here"),
        (["--runtime", "enroot"], ["buildah", "enroot"], {}, "install podman"),
        ([], ["docker"], {"FAIL": "build"}, "exit status 7"),
        ([], ["docker"], {"FAIL": "pull"}, "exit status 7"),
        (["--runtime", "bare"], ["docker"], {}, "invalid choice"),
    ],
)
def test_what_cannot_be_built_is_told_in_one_sentence(place, words, programs, variables, told):
    done, _, written = ringmark_image(place, *words, programs=programs, **variables)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ringmark: ")
    assert told in last
    assert "Traceback" not in done.stderr
    assert written is None


def test_what_was_built_is_read_back(place):
    with pytest.raises(UserError, match="run 'ringmark image'"):
        image.read(place / image.RESULT)
    _, _, written = ringmark_image(place, "--tag", "localhost/x:1")
    assert image.read(place / "checkout" / image.RESULT).image_id == written["image_id"]
    assert image.read(place / "checkout" / image.RESULT).name == "localhost/x:1"


def test_a_dry_run_starts_nothing(place):
    done, asked, written = ringmark_image(place, "--dry-run")
    assert done.returncode == 0
    assert [words[1] for words in asked] == ["info"] * len(asked)
    assert written is None
    assert "--target runtime" in done.stdout


@pytest.mark.parametrize(
    ("words", "programs", "shown"),
    [
        ([], [], "docker build"),
        ([], ["podman"], "podman build"),
        (["--builder", "docker"], ["podman"], "docker build"),
        (["--builder", "buildah"], [], "buildah bud"),
        (["--runtime", "apptainer"], [], "apptainer build"),
    ],
)
def test_a_dry_run_needs_no_builder(place, words, programs, shown):
    done, asked, _ = ringmark_image(place, "--dry-run", *words, programs=programs, FAIL="info")
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert not [line for line in asked if line[1] != "info"]


def test_doctor_tells_a_docker_without_its_daemon(tmp_path, monkeypatch):
    for name in ("docker", "apptainer"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [*doctor.container_tools()][:2] == [
        ("note", "docker without its daemon", "start the daemon, or use podman or buildah"),
        ("ok", "container tools: apptainer", ""),
    ]
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 0\n")
    assert ("ok", "container tools: docker, apptainer", "") in doctor.container_tools()


def test_a_damaged_pin_is_told_with_its_line(place):
    with open(place / "checkout" / image.PINS, "a") as pins:
        pins.write("nvcr.io/nvidia/pytorch:24.07-py3@sha256:short\n")
    done, asked, _ = ringmark_image(place)
    assert done.returncode == 2
    assert "line 4" in done.stderr
    assert not [words for words in asked if "pull" in words]


SNAKEFILE = """
from types import SimpleNamespace
from ringmark import dag
CAMPAIGN = SimpleNamespace(runtime="docker")
include: "workflow/rules/image.smk"
rule all:
    default_target: True
    input: rules.image.output
"""


def test_the_rule_builds_again_only_when_a_file_of_the_image_has_changed(place):
    pytest.importorskip("snakemake")
    checkout = place / "checkout"
    shutil.copytree(ROOT / "src/ringmark/data", checkout / "src/ringmark/data")
    shutil.copytree(ROOT / "workflow", checkout / "workflow")
    (checkout / "Snakefile").write_text(SNAKEFILE)
    ringmark_image(place, "--dry-run")  # puts the stand-in there

    def builds():
        asked = place / "asked"
        asked.write_text("")
        env = {"PATH": f"{place / 'bin'}:/usr/bin:/bin", "ASKED": str(asked), "PYTHONPATH": str(ROOT / "src")}
        argv = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
        argv += ["--workflow-profile", "none"]
        done = subprocess.run(
            argv, cwd=checkout, env={**env, "HOME": str(place)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sum("--iidfile" in line for line in asked.read_text().splitlines())

    assert builds() == 1
    assert builds() == 0
    (checkout / "docs").mkdir()
    (checkout / "docs/image.md").write_text("not in the image")
    assert builds() == 0
    (checkout / "src/ringmark/data/peaks.yaml").write_text("edited: true")
    assert builds() == 1


def test_the_revision_is_of_the_checkout_whatever_repository_a_hook_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    made = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "first"]
    subprocess.run(["git", *made], check=True)
    monkeypatch.setattr(image, "inputs", lambda: ["Dockerfile"])
    found = source_revision()
    assert found[0] is not None
    assert found[1] is not None
    monkeypatch.setenv("GIT_DIR", "/elsewhere/.git")
    assert source_revision() == found
