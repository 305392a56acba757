"""The opt_bwd patches apply to the hashed source archives, without fuzz, and only add to what callers see."""

import ast
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PATCHED = [one for one in yaml.safe_load((ROOT / "envs/upstreams.yaml").read_text()) if "patch" in one]
BACKWARDS = ("_flash_attn_backward", "_flash_attn_varlen_backward")

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch"),
]


def parameters(interface):
    """Name -> (parameter names, number of defaults) of every function of the Python surface."""
    functions = [node for node in ast.walk(ast.parse(interface)) if isinstance(node, ast.FunctionDef)]
    return {one.name: ([arg.arg for arg in one.args.args], len(one.args.defaults)) for one in functions}


@pytest.mark.parametrize("upstream", PATCHED, ids=lambda one: one["version"])
def test_the_patch_applies_and_only_adds_to_the_python_surface(upstream, tmp_path, monkeypatch):
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(f"{upstream['name']}=={upstream['version']} --hash=sha256:{upstream['sha256']}\n")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    argv += [
        "--no-binary",
        ":all:",
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--dest",
        str(tmp_path),
    ]
    monkeypatch.setenv("FLASH_ATTENTION_SKIP_CUDA_BUILD", "TRUE")
    fetched = subprocess.run(argv, capture_output=True, text=True)
    assert fetched.returncode == 0, fetched.stderr
    with tarfile.open(tmp_path / upstream["file"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    interface = source / "flash_attn/flash_attn_interface.py"
    before = parameters(interface.read_text())
    patched = subprocess.run(
        ["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "--input", str(ROOT / upstream["patch"])],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert patched.returncode == 0, patched.stdout
    assert "offset" not in patched.stdout
    after = parameters(interface.read_text())
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {name + suffix for name in BACKWARDS for suffix in ("", "_fake")}
    for name in changed:
        names, defaults = before[name]
        assert after[name] == ([*names, "softmax_d"], defaults + 1)
