"""The contract of a method: one file, one class named Method, forward and backward written out.

A method owns `attend` (the forward of one rank) and `gradients` (its backward); the autograd wiring is here,
once. An implementation with an autograd of its own (the peers) overrides `forward` instead. A method never
imports ringmark.bench or ringmark.record: it cannot time or grade itself.
"""

from __future__ import annotations

import importlib
import json
from typing import Any, ClassVar

import torch

from ringmark import layout as layouts
from ringmark.cell import Cell, MeshShape, OptionValue
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError, in_words, shown
from ringmark.kernels import merge
from ringmark.kernels.base import Kernel
from ringmark.options import Options


class Method:
    """One distributed-attention algorithm on one mesh; subclasses are named Method, one in each file."""

    label: ClassVar[str]  # as a table prints it
    implementation: ClassVar[str] = "ringmark"  # or the peer library, with its version asked at run time
    default_options: ClassVar[dict[str, OptionValue]] = {}  # literals, laid over those of the class above
    choices: ClassVar[dict[str, tuple[OptionValue, ...]]] = {}  # an option without is a whole number
    layout: str  # a class attribute where it is fixed; set in __init__ where an option decides

    def __init_subclass__(cls) -> None:
        above = next(one for one in cls.__mro__[1:] if issubclass(one, Method))
        whole = _stated(above).below(_stated(cls))
        reason = whole.reason_not(cls.name(), whole.defaults)
        if reason:
            raise TypeError(f"its own default is refused: {reason}, or write its choices down")
        cls.default_options, cls.choices = dict(whole.defaults), dict(whole.choices)

    def __init__(self, **options: OptionValue) -> None:
        reason = _stated(type(self)).reason_not(self.name(), options)
        if reason:
            raise UserError(reason)
        self.options = {**self.default_options, **options}

    # What a method says of itself before it runs.

    @classmethod
    def name(cls) -> str:
        """What a cell calls it: its file."""
        return cls.__module__.rsplit(".", 1)[-1]

    def unavailable(self) -> str | None:
        """Why this machine cannot run it (a missing library), or None."""
        return None

    def unsupported(self, cell: Cell) -> str | None:
        """Why this cell cannot exist for this method (a length that does not divide, ...), or None."""
        return None

    def layout_on(self, gpus: int, world_size: int) -> str:
        """How tokens are dealt on such a mesh; after setup, `layout` says the same."""
        return self.layout

    def moves(self, mesh: MeshShape) -> str:
        """What a rank sends in an iteration on such a mesh, in words, for `ringmark methods`."""
        return "its moves(mesh) does not say yet what moves"

    def settings(self) -> dict[str, Any]:
        """What a reader of the record should know of how it ran: options, wires, library versions."""
        return dict(self.options)

    # What it does.

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        """Bind to a mesh and a kernel: make rings and groups here (collective: all ranks, same order)."""
        self.mesh, self.kernel, self.causal, self.scale = mesh, kernel, causal, scale

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's (out, lse) from its local q, k, v (B, S_local, H, D); lse is (B, H, S_local)."""
        raise NotImplementedError(f"{self.name()}.py has no attend(): write the forward of one rank")

    def gradients(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """This rank's (dq, dk, dv)."""
        raise NotImplementedError(f"{self.name()}.py has no gradients(): write the backward of one rank")

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the attention output, differentiable."""
        scale = self.scale if self.scale is not None else q.shape[-1] ** -0.5
        out: torch.Tensor = _Attention.apply(self, q, k, v, scale)  # type: ignore[no-untyped-call]
        return out

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.forward(q, k, v)


def load_class(module: str) -> type[Method]:
    """The class Method of a file; what is wrong with the file is an ImportError that says so."""
    name = module.rpartition(".")[2]
    try:
        found: type[Method] = importlib.import_module(module).Method
        made = found()
    except (Exception, SystemExit) as error:  # a file may raise anything while it is imported
        raise ImportError(f"{name}.py does not load: {in_words(error)}") from error
    if reason := _misstated(made, module):
        raise ImportError(f"{name}.py {reason}")
    return found


def _misstated(made: Method, module: str) -> str | None:
    """What is wrong with what a method says of itself, and what to do about it, or None."""
    if type(made).__module__ != module:
        return f"has the class Method of {type(made).__module__}: derive one of its own from that"
    if "label" not in vars(type(made)):  # the one that a class inherits is another method's
        return "has a class Method without a label of its own: give it one"
    if not isinstance(made.label, str) or len(made.label.splitlines()) != 1 or not made.label.strip():
        return f"has the label {made.label!r}: give it a text of one line"
    if not hasattr(made, "layout"):
        return "has a class Method without layout: give it one"
    reason = layouts.unknown(made.layout)
    return f"has the layout {made.layout!r}: {reason}" if reason else None


def reason_of(asked: str, answer: object) -> str | None:
    """What a method answers where it should say why not, in a sentence, or None; anything else is refused."""
    if answer is not None and not isinstance(answer, str):
        raise TypeError(f"{asked} gives {answer!r}: return a sentence that says why not, or None")
    return answer


def settings_of(method: Method) -> dict[str, Any]:
    """A copy of what a method says of how it ran; what a record cannot hold is refused."""
    found: object = method.settings()
    if not isinstance(found, dict):
        raise TypeError(
            f"settings() of {method.name()} gives {shown(found)}: return a dict of names and values"
        )
    for key, value in found.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise TypeError(
                f"settings() of {method.name()} gives {shown(value)} for {key!r}: "
                "give texts, finite numbers, true or false, and lists or dicts of these"
            ) from None
    return dict(found)


def _tensors(names: tuple[str, ...], asked: str, method: Method, answer: Any) -> tuple[torch.Tensor, ...]:
    """What a method answers where it should return these tensors; anything else is refused."""
    several = isinstance(answer, (tuple, list))
    if several and len(answer) == len(names) and all(isinstance(one, torch.Tensor) for one in answer):
        return tuple(answer)
    given = f"({', '.join(map(shown, answer))})" if several else shown(answer)
    wanted = f"({', '.join(names)}), {len(names)} tensors"
    raise TypeError(f"{asked} of {method.name()} gives {given}: return {wanted}")


def _stated(kind: Any) -> Options:
    return Options(kind.default_options, kind.choices)


class _Attention(torch.autograd.Function):
    """Ties attend and gradients together for autograd."""

    @staticmethod
    def forward(ctx: Any, method: Method, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        out, lse = _tensors(("out", "lse"), "attend()", method, method.attend(q, k, v, scale))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.method, ctx.scale = method, scale
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        answer = ctx.method.gradients(dout.contiguous(), q, k, v, out, lse, ctx.scale)
        dq, dk, dv = _tensors(("dq", "dk", "dv"), "gradients()", ctx.method, answer)
        return None, dq, dk, dv, None


def delta_for(kernel: Kernel, dout: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """What a kernel is handed as delta; one that takes out instead does not read it, so it costs nothing."""
    return lse if kernel.needs_out else row_dot(dout, out)


def row_dot(dout: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """delta = rowsum(dout * out) as float32 (B, H, S): one kernel on a GPU, else in chunks of rows."""
    if merge.by_triton(out):
        from ringmark.kernels._triton import row_dot_on_gpu

        return row_dot_on_gpu(dout, out)
    batch, seqlen, heads, _ = out.shape
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    delta = torch.empty(batch, heads, seqlen, dtype=wide, device=out.device)
    for start in range(0, seqlen, 4096):
        rows = slice(start, start + 4096)
        delta[:, :, rows] = (dout[:, rows].to(wide) * out[:, rows].to(wide)).sum(-1).transpose(1, 2)
    return delta
