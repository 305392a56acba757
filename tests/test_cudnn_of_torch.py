"""Two releases of a library in parts, a compiler and the real loader: who asks for parts gets torch's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOADER = Path(__file__).parents[1] / "src" / "ringmark" / "peers" / "_cudnn_of_torch.py"
# As torch does: the first part alone, from its own folder. Then somebody asks for another part by its name.
ASK = """
import ctypes, importlib.util, sys
import nvidia.cudnn
own = list(nvidia.cudnn.__path__)[0] + "/lib/"
ctypes.CDLL(own + "libcudnn_graph.so.9", mode=ctypes.RTLD_GLOBAL)
if len(sys.argv) > 2:
    spec = importlib.util.spec_from_file_location("_cudnn_of_torch", sys.argv[2])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load()
print(ctypes.CDLL(sys.argv[1]).asked())
"""


def build(source: str, target: Path, *needed: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".c").write_text(source)
    named = ["-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-o", str(target)]
    libraries = [*map(str, needed), *(f"-Wl,-rpath-link,{one.parent}" for one in needed)]
    subprocess.run(["gcc", *named, str(target.with_suffix(".c")), *libraries], check=True)
    return target


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler")
def test_every_part_is_of_the_release_that_torch_has_begun_to_load(tmp_path: Path) -> None:
    package = tmp_path / "site" / "nvidia" / "cudnn"
    folders = {1: tmp_path / "system", 2: package / "lib"}
    for release, folder in folders.items():
        graph = build(f"int graph_{release}() {{ return {release}; }}", folder / "libcudnn_graph.so.9")
        calls = f"int graph_{release}(); int cnn() {{ return graph_{release}(); }}"
        build(calls, folder / "libcudnn_cnn.so.9", graph)
    asker = build(
        "int cnn(); int asked() { return cnn(); }", tmp_path / "asker.so", folders[2] / "libcudnn_cnn.so.9"
    )
    (package / "__init__.py").touch()

    def ask(*words: Path) -> subprocess.CompletedProcess[str]:
        paths = {"PYTHONPATH": str(tmp_path / "site"), "LD_LIBRARY_PATH": str(folders[1])}
        command = [sys.executable, "-c", ASK, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})

    assert "undefined symbol: graph_1" in ask(asker).stderr
    loaded = ask(asker, LOADER)
    assert (loaded.stdout, loaded.stderr) == ("2\n", "")
