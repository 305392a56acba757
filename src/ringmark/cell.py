"""A cell: the coordinates of one measurement, and its key, which is also its path.

    method[+option=value...] / shape / mesh / kernel / seqlen _ phase
    burst+layout=striped/b1-hq40-hkv40-d128-bf16-causal/4x8/flash2/S131072_fwd_bwd

The key is read and written here alone; `Cell.from_key(cell.key) == cell`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ringmark.errors import UserError

Phase = Literal["fwd", "fwd_bwd"]
Dtype = Literal["fp32", "bf16", "fp16", "fp64"]
Mask = Literal["causal", "full"]
OptionValue = bool | int | str

PHASES: tuple[Phase, ...] = ("fwd", "fwd_bwd")
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "fp16", "fp64")
BOUND = "single"  # the method that every other is held against: the kernel alone, on the same work per GPU
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
INT64_MAX = 2**63 - 1  # of a tensor: its bytes, and the positions of its tokens
_WORD = re.compile(r"[a-z0-9][a-z0-9_]*\Z")
_OPTION_TEXT = re.compile(r"[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True, order=True)
class Shape:
    """What a problem is besides its length: batch, heads, head size, dtype, mask."""

    batch: int = 1
    num_heads_q: int = 40
    num_heads_kv: int = None  # type: ignore[assignment]  # as many as query heads: set below
    head_dim: int = 128
    dtype: Dtype = "bf16"
    mask: Mask = "causal"

    def __post_init__(self) -> None:
        if self.num_heads_kv is None:
            object.__setattr__(self, "num_heads_kv", self.num_heads_q)
        for name in ("batch", "num_heads_q", "num_heads_kv", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a number of at least 1")
        if self.num_heads_q % self.num_heads_kv:
            raise ValueError(
                f"num_heads_kv {self.num_heads_kv} does not divide num_heads_q {self.num_heads_q}: "
                "choose kv heads that do"
            )

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    def reason_not(self, seqlen_global: int) -> str | None:
        """Why no sequence can have this length, or None."""
        if seqlen_global < 1:
            return f"seqlen_global is {seqlen_global}: give a number of at least 1"
        token = self.batch * self.num_heads_q * self.head_dim * DTYPE_BYTES[self.dtype]
        if seqlen_global * token > INT64_MAX:
            return (
                f"seqlen_global is {seqlen_global}: no tensor has more than 2**63 - 1 bytes, which q of "
                f"{self} has past {INT64_MAX // token} tokens: give a smaller number"
            )
        return None

    def __str__(self) -> str:
        heads = f"hq{self.num_heads_q}-hkv{self.num_heads_kv}"
        return f"b{self.batch}-{heads}-d{self.head_dim}-{self.dtype}-{self.mask}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        found = re.fullmatch(r"b(\d+)-hq(\d+)-hkv(\d+)-d(\d+)-([a-z0-9]+)-(causal|full)", text)
        if not found or found[5] not in DTYPES:
            raise UserError(f"{text!r} is no shape: write it like b1-hq40-hkv40-d128-bf16-causal")
        batch, heads_q, heads_kv, dim = (int(found[i]) for i in range(1, 5))
        return cls(batch, heads_q, heads_kv, dim, found[5], found[6])  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class MeshShape:
    """The ranks seen as nodes x gpus; rank = node * gpus + gpu."""

    nodes: int = 1
    gpus: int = 1

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 1:
            raise ValueError(f"a mesh of {self.nodes}x{self.gpus} has no ranks: both sizes are at least 1")

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus}"

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        found = re.fullmatch(r"(\d+)x(\d+)", text)
        if not found:
            raise UserError(f"{text!r} is no mesh: write nodes x gpus, like 4x8")
        try:
            return cls(int(found[1]), int(found[2]))
        except ValueError as error:
            raise UserError(str(error)) from None


@dataclass(frozen=True, order=True)
class Cell:
    """The coordinates of one measurement."""

    method: str
    seqlen_global: int
    shape: Shape = Shape()
    phase: Phase = "fwd_bwd"
    mesh: MeshShape = MeshShape()
    kernel: str = "auto"
    options: dict[str, OptionValue] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("method", "kernel"):
            if not is_name(getattr(self, name)):
                raise ValueError(f"{getattr(self, name)!r} is no {name} name: use a-z, 0-9 and _")
        if reason := self.shape.reason_not(self.seqlen_global):
            raise ValueError(reason)
        for key, value in self.options.items():
            if not _WORD.match(key) or not _OPTION_TEXT.match(option_text(value)):
                raise ValueError(
                    f"option {key}={value!r} cannot be written in a path: use letters, digits, _ . and -"
                )
        # Equal cells have equal options in any order: keep them sorted.
        object.__setattr__(self, "options", dict(sorted(self.options.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def world_size(self) -> int:
        return self.mesh.world_size

    @property
    def row(self) -> str:
        """The table row that a cell belongs to: its method and options."""
        return "+".join(
            [self.method, *(f"{key}={option_text(value)}" for key, value in self.options.items())]
        )

    @property
    def key(self) -> str:
        return f"{self.row}/{self.shape}/{self.mesh}/{self.kernel}/S{self.seqlen_global}_{self.phase}"

    @classmethod
    def from_key(cls, key: str) -> Cell:
        parts = key.split("/")
        last = re.fullmatch(r"S(\d+)_(fwd|fwd_bwd)", parts[-1])
        if len(parts) != 5 or not last:
            raise UserError(f"{key!r} is no cell key: method/shape/mesh/kernel/S<seqlen>_<phase>")
        method, options = parse_row(parts[0])
        shape, mesh = Shape.parse(parts[1]), MeshShape.parse(parts[2])
        return cls(method, int(last[1]), shape, last[2], mesh, parts[3], options)  # type: ignore[arg-type]


def is_name(text: str) -> bool:
    """Whether a method or kernel can be called so: its name is a part of paths, and of rows."""
    return _WORD.match(text) is not None


def parse_row(text: str) -> tuple[str, dict[str, OptionValue]]:
    """'usp+placement=head_first+ulysses=4' -> ('usp', {'placement': 'head_first', 'ulysses': 4})."""
    method, *assignments = text.split("+")
    options: dict[str, OptionValue] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise UserError(f"{assignment!r} is no option: write name=value")
        if name in options:
            raise UserError(f"{text!r} gives {name} twice: leave one")
        options[name] = parse_option(value)
    return method, options


def parse_option(text: str) -> OptionValue:
    """The value that an option's text stands for: true, false, a whole number, or the text itself."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def option_text(value: object) -> str:
    """The text that stands for an option's value, where `parse_option` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
