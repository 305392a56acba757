"""One cuDNN in a process: torch's own, also for a library that asks the loader for every part of it by name.

torch loads the first part of its cuDNN, and cuDNN the others when it needs them. Who asks for one by name
before that gets the system's, and the parts of two releases do not fit: "undefined symbol", or not, as the
cells before it went. So all parts are loaded from torch's folder first; a name that is loaded is not looked
for again.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path


@functools.cache  # an adapter asks for each module that it builds
def load() -> None:
    """Load every part of torch's cuDNN, where it has one of its own, and tell others where it lies."""
    try:
        import nvidia.cudnn
    except ImportError:
        return
    folder = Path(next(iter(nvidia.cudnn.__path__)))
    os.environ.setdefault("CUDNN_HOME", str(folder))
    waiting = sorted(folder.glob("lib/libcudnn*.so.*"))
    while waiting:  # a part may need another that is not loaded yet
        failed = [path for path in waiting if not _loads(path)]
        if len(failed) == len(waiting):
            return  # the import says what is wrong
        waiting = failed


def _loads(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
