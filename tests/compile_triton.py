"""Compiles the Triton kernels for a GPU that need not be there; prints a line for each as JSON.

python tests/compile_triton.py
"""

from __future__ import annotations

import inspect
import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ringmark.kernels import _triton

HOPPER = GPUTarget("cuda", 90, 32)


def compiled(kernel, dtype: str, **constants: int) -> dict[str, object]:
    constants |= {"block_s": _triton.BLOCK_S, "block_d": 128}
    kinds = {}
    for name in inspect.signature(kernel.fn).parameters:
        per_row = "lse" in name or "delta" in name
        pointer = "*fp32" if per_row else f"*{dtype}"
        kinds[name] = "constexpr" if name in constants else pointer if name.endswith("_ptr") else "i32"
    made = triton.compile(ASTSource(kernel, kinds, constants), target=HOPPER)
    return {
        "kernel": kernel.fn.__name__,
        "dtype": dtype,
        "bytes": len(made.asm["cubin"]),
        "barriers": made.asm["ptx"].count("bar.sync"),
    }


for dtype in ("bf16", "fp32"):
    print(json.dumps(compiled(_triton._fold, dtype)))
    print(json.dumps(compiled(_triton._row_dot, dtype)))
    for parts in (0, _triton.AT_ONCE):
        print(json.dumps(compiled(_triton._sum, dtype, parts=parts)))
