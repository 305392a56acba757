"""What the image is made of agrees with itself: one version everywhere, every base and package pinned."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ringmark import image

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UPSTREAMS = yaml.safe_load((ROOT / "envs/upstreams.yaml").read_text())
LOCKS = {path.name: path.read_text() for path in sorted((ROOT / "envs").glob("image*.lock"))}
PATCHES = sorted((ROOT / "envs/flash-attn").glob("*.patch"))
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})\n")
DOCUMENTS = {
    name: (ROOT / name).read_text() for name in ("Dockerfile", "docs/image.md", "envs/upstreams.yaml", *(
        f"envs/{lock}" for lock in LOCKS
    ))
}  # fmt: skip


def entries(lock):
    return {name: (version, digest) for name, version, digest in ENTRY.findall(LOCKS[lock])}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_version_with_its_hash(lock):
    rest = ENTRY.sub("", LOCKS[lock])
    assert [line for line in rest.splitlines() if not line.startswith("#")] == []
    assert len(entries(lock)) == len(ENTRY.findall(LOCKS[lock])) > 0


def test_upstreams_are_pinned_and_agree_with_the_locks():
    locked = {(name, *pin) for lock in LOCKS for name, pin in entries(lock).items()}
    names = {name for name, _, _ in locked}
    for upstream in UPSTREAMS:
        assert re.fullmatch(r"\d+(\.\d+)+(\.post\d+)?", upstream["version"]), upstream
        assert re.fullmatch(r"[0-9a-f]{64}", upstream["sha256"]), upstream
        assert upstream["commit"] is None or re.fullmatch(r"[0-9a-f]{40}", upstream["commit"]), upstream
        assert upstream["version"] in upstream["file"], upstream
    pinned = {(one["name"], one["version"], one["sha256"]) for one in UPSTREAMS}
    for name in {one["name"] for one in UPSTREAMS} & names:
        assert [pin for pin in pinned if pin[0] == name and pin in locked], (
            f"{name}: another version is locked"
        )


def test_what_the_image_compiles_is_an_upstream():
    assert set(entries("image-build.lock")) <= {upstream["name"] for upstream in UPSTREAMS}


def test_the_versions_in_words_are_the_versions_in_the_locks():
    flash = entries("image-build.lock")["flash-attn"][0]
    engine = entries("image.lock")["transformer-engine"][0]
    assert entries("image-build.lock")["transformer-engine-torch"][0] == engine
    assert entries("image.lock")["transformer-engine-cu12"][0] == engine
    known = {flash, *(one["version"] for one in UPSTREAMS if one["name"] == "flash-attn")}
    for name, text in DOCUMENTS.items():
        said = re.findall(r"(?<!ring-)flash-attn[ =]+v?(\d[\w.]*\w)", text)
        assert set(said) <= known, f"{name} speaks of flash-attn {said}"
        said = re.findall(r"Transformer Engine (\d+\.\d+)", text)
        assert set(said) <= {engine.rsplit(".", 1)[0]}, f"{name} speaks of Transformer Engine {said}"
    assert f'ringmark.flash-attn="{flash} with opt_bwd"' in DOCKERFILE
    assert f'ringmark.transformer-engine="{engine}"' in DOCKERFILE


def test_the_cpu_image_has_the_versions_that_the_local_campaign_has():
    torch = re.search(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert torch is not None
    cpu = entries("image-cpu.lock")
    assert cpu["torch"][0] == f"{torch[1]}+cpu"
    local = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "envs/local.lock").read_text(), re.MULTILINE))
    assert cpu["pyyaml"][0] == local["PyYAML"] == entries("image.lock")["pyyaml"][0]


def test_every_base_is_an_argument_that_says_what_it_is_or_has_a_digest():
    preamble, arguments = DOCKERFILE.split("\nFROM ", 1)[0], {}
    for match in re.finditer(r"^ARG (\w+)=(\S+)$", preamble, re.MULTILINE):
        arguments[match[1]] = match[2]
    assert "digest" in preamble.split("ARG ", 1)[0], (
        "the comment above the arguments says how they are pinned"
    )
    bases = re.findall(r"^FROM (\S+) AS \w+$", DOCKERFILE, re.MULTILINE)
    assert len(bases) == len(re.findall(r"^FROM ", DOCKERFILE, re.MULTILINE)) > 0
    for base in bases:
        named = re.fullmatch(r"\$\{(\w+)\}", base)
        assert "@sha256:" in base or (named and named[1] in arguments), base
    for target in image.TARGETS:
        assert image.default_base(DOCKERFILE, target) == arguments[image.BASE_ARGUMENT[target]]
        assert re.search(r":\d[\w.-]+$", arguments[image.BASE_ARGUMENT[target]]), "a base without a version"


def test_the_pins_of_the_bases_are_readable():
    for reference in image.read_pins((ROOT / image.PINS).read_text()):
        assert reference in {image.default_base(DOCKERFILE, target) for target in image.TARGETS}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_branch_and_no_moving_tag_is_a_pin(name):
    assert not re.search(
        r"(?:@|/tree/|/archive/|--branch[ =]|git\+\S*@)(?:main|master|develop|dev)\b", DOCUMENTS[name]
    )
    assert not re.search(r":(?:latest|nightly|edge)\b", DOCUMENTS[name])


def test_the_dockerfile_asks_nothing_that_buildah_1_28_cannot_do():
    assert not re.search(r"<<-?['\"]?[A-Z]", DOCKERFILE), "a heredoc"
    assert "ADD --checksum" not in DOCKERFILE
    assert "COPY --link" not in DOCKERFILE


def test_the_build_sees_what_it_copies_and_the_rule_watches_it():
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        copied |= set(line.split()[:-1])
    assert copied == seen
    watched = image.inputs(ROOT)
    for name in copied:
        assert name in watched or any(path.startswith(f"{name}/") for path in watched), name
        assert (ROOT / name).exists(), name
    assert not [path for path in watched if "__pycache__" in path]
    assert "src/ringmark/image.py" in watched


def test_hadolint_finds_nothing():
    own = Path(sys.executable).with_name("hadolint")  # of envs/dev.lock: each release has rules of its own
    tool = own if own.exists() else shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is not installed")
    found = subprocess.run([str(tool), str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 0


def changed(patch):
    lines = patch.read_text().splitlines()
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]


def test_the_two_patches_are_one_change():
    assert len(PATCHES) == 2
    assert changed(PATCHES[0]) == changed(PATCHES[1])
    assert {Path(one["patch"]) for one in UPSTREAMS if "patch" in one} == {
        path.relative_to(ROOT) for path in PATCHES
    }


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.name)
def test_the_patch_leaves_the_clearing_of_dq_accum_alone(patch):
    """With delta given the preprocess kernel still has to run: its launch and its clearing are untouched."""
    files = re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)
    assert "csrc/flash_attn/src/flash_bwd_launch_template.h" not in files
    assert not [line for line in changed(patch) if "Clear_dQaccum" in line or "dq_accum" in line]
    given, stock = (
        patch.read_text().split("if (params.delta_ptr != nullptr) {", 1)[1].split("    } else {", 1)
    )
    assert "dP_sum(tidx)" in given
    assert "return" not in given
    assert stock.index("     if (Clear_dQaccum) {") > 0


def test_the_record_of_the_proof_is_of_these_patches_and_passed():
    folder = ROOT / "results/opt_bwd"
    tested = dict(line.split()[::-1] for line in (folder / "patches.sha256").read_text().splitlines())
    assert tested == {
        str(patch.relative_to(ROOT)): hashlib.sha256(patch.read_bytes()).hexdigest() for patch in PATCHES
    }
    records = [json.loads(path.read_text()) for path in folder.glob("opt_bwd-*.json")]
    assert {record["environment"]["flash_attn"] for record in records} == {
        one["version"] for one in UPSTREAMS if "patch" in one
    }
    assert all(record["passed"] and record["stock_build"] for record in records)
    report = [sys.executable, str(ROOT / "tests/gpu/opt_bwd_report.py"), "--check"]
    assert subprocess.run(report, capture_output=True).returncode == 0
