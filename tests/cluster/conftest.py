"""One Slurm for all tests of this folder, and a checkout of its own for each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import Checkout
from slurm import Slurm, unavailable


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    # Not in pytest's own folder: munge's user could not reach its socket there.
    made = Slurm(Path(tempfile.mkdtemp(prefix="ringmark-slurm-")))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def checkout(slurm: Slurm, tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path, slurm)
    try:
        yield made
    finally:
        made.close()
