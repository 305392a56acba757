"""What every adapter shares: is the library here and of a version that works, and which kernel does it run.

An adapter says where its library is (`library`, `distribution`), which of a cell's kernels it can run and by
what name (`backends`), and what must divide. It asks the cheap questions first (is the module there, is
there a GPU) and imports the library only where everything else is in place: a library that breaks on import
is as absent as one that was never installed, and the reason says which.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from ringmark import layout as layouts
from ringmark.cell import Cell, OptionValue
from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.methods.base import Method


class Peer(Method):
    """An adapter to somebody else's implementation; subclasses are named Method, one in each file."""

    library: ClassVar[str]  # the module that is imported
    distribution: ClassVar[str]  # the name that the library is installed under
    obtain: ClassVar[str]  # how to get it
    backends: ClassVar[dict[str, str]]  # a cell's kernel -> the library's word for it; the first is preferred
    dtypes: ClassVar[tuple[str, ...]] = ("bf16", "fp16")
    causal_only: ClassVar[bool] = False
    also_needs: ClassVar[dict[str, str]] = {}  # module -> how to get it
    implementation: str  # type: ignore[misc]  # the library with the version found here
    layout = "zigzag"

    def __init__(self, **options: OptionValue) -> None:
        super().__init__(**options)
        self.implementation = f"{self.distribution} {version_of(self.distribution, self.library)}"

    # Whether it can run.

    @classmethod
    def load(cls) -> Any:
        """Import what `forward` will call; raises where that cannot be done."""
        return importlib.import_module(cls.library)

    def unavailable(self) -> str | None:
        for module, how in {self.library: self.obtain, **self.also_needs}.items():
            if not installed(module):
                return f"the module {module} is not installed: {how}"
        return self.no_device() or self.misfit() or _load_failure(type(self))

    def no_device(self) -> str | None:
        """Why the devices here are of no use to the library, or None."""
        if not torch.cuda.is_available():
            return f"{self.implementation} needs a CUDA device: there is none here"
        return None

    def misfit(self) -> str | None:
        """Why the versions found here do not work together, or None; asked before the import."""
        return None

    def unsupported(self, cell: Cell) -> str | None:
        shape = cell.shape
        if cell.kernel != "auto" and cell.kernel not in self.backends:
            return f"{self.label} runs {' or '.join(self.backends)}, not kernel {cell.kernel}"
        if shape.dtype not in self.dtypes:
            return f"{self.label} computes in {' or '.join(self.dtypes)}, not in {shape.dtype}"
        if self.causal_only and not shape.causal:
            return f"{self.label} is written for the causal mask alone"
        reason = self.impossible(cell)
        if reason or cell.world_size == 1:
            return reason
        found = self.layout_on(cell.mesh.gpus, cell.world_size)
        return layouts.reason_not(found, cell.seqlen_global, cell.world_size)

    def impossible(self, cell: Cell) -> str | None:
        """What else keeps this cell from existing (heads, degrees), or None."""
        return None

    def layout_on(self, gpus: int, world_size: int) -> str:
        """The layout that the library expects on such a mesh."""
        return self.layout

    # How it runs.

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        """The kernel is a label here: the library brings its own, and runs the one of that name."""
        super().setup(mesh, kernel, causal=causal, scale=scale)
        self.layout = self.layout_on(mesh.gpus, mesh.world_size)
        self.kernel_name = kernel.name if kernel.name in self.backends else next(iter(self.backends))
        self.backend = self.backends[self.kernel_name]

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {**self.options, self.library: version_of(self.distribution, self.library)}
        if hasattr(self, "kernel_name"):
            found |= {"kernel": self.kernel_name, "kernel_version": self.kernel_version()}
        return found

    def kernel_version(self) -> str:
        """The version of what really computed."""
        return _KERNEL_VERSIONS[self.kernel_name]()


def _flash2_version() -> str:
    return f"flash-attn {version_of('flash-attn', 'flash_attn')}"


def _cudnn_version() -> str:
    return f"cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]


_KERNEL_VERSIONS: dict[str, Callable[[], str]] = {
    "flash2": _flash2_version,
    "cudnn": _cudnn_version,
    "sdpa_flash": lambda: f"torch {torch.__version__}",
}


def installed(module: str) -> bool:
    """Whether a top-level module could be imported, found without importing it."""
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version_of(distribution: str, module: str) -> str:
    """The version of a library, from its metadata or, where it has none, from the loaded module."""
    try:
        asked: Any = importlib.metadata.version
        return str(asked(distribution))
    except importlib.metadata.PackageNotFoundError:
        loaded = sys.modules.get(module)
        unknown = "of unknown version" if installed(module) else "not installed"
        return str(getattr(loaded, "__version__", unknown))


def heads_misfit(cell: Cell, degree: int, option: str) -> str | None:
    """Why heads cannot be dealt to `degree` ranks, or None."""
    shape = cell.shape
    for what, heads in (("num_heads_q", shape.num_heads_q), ("num_heads_kv", shape.num_heads_kv)):
        if heads % degree:
            fits = [d for d in range(1, cell.world_size + 1) if cell.world_size % d == 0]
            fits = [d for d in fits if shape.num_heads_q % d == 0 and shape.num_heads_kv % d == 0]
            return f"{what} {heads} does not divide among {degree} ranks: {option} can be {_or(fits)}"
    return None


def degree_misfit(world_size: int, degree: int, option: str) -> str | None:
    """Why a world has no groups of `degree` ranks, or None."""
    if degree < 1 or world_size % degree:
        fits = [d for d in range(1, world_size + 1) if world_size % d == 0]
        return f"{option}={degree} does not divide {world_size} ranks: it can be {_or(fits)}"
    return None


def _or(numbers: list[int]) -> str:
    return " or ".join(", ".join(str(number) for number in numbers).rsplit(", ", 1))


def _load_failure(adapter: type[Peer]) -> str | None:
    """Why the library does not import, or None; Python itself remembers an import that worked."""
    try:
        adapter.load()
    except (Exception, SystemExit) as error:  # as absent as one that was never installed
        words = " ".join(str(error).split())[:300]
        found = f"{adapter.library} {version_of(adapter.distribution, adapter.library)}"
        return f"{found} is installed but does not import: {type(error).__name__}: {words}"
    return None
