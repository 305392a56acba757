"""How an answer is graded: on how many rows, how wrong it may be, by the measure of which kernel.

Pure numbers, no torch: the check uses them where a cell is measured, `ringmark check` again where its record
is read.
"""

from __future__ import annotations

import math

ROWS_PER_PART = 16  # query rows that are looked at in each half-block of every rank
EVERY_ROW_UP_TO = 512  # query rows of the whole sequence: up to here all of them are

KERNEL_FACTOR = 2.0

# What a correct answer of a dtype may differ by where the kernel's own error is smaller still.
#   fp64, fp32  64 units of roundoff: the float32 lse of a long sequence (about 12) alone is wrong by up to
#               12 units, and enters every weight; partial results are merged once per hop
#   bf16, fp16  1 unit, the largest error of one rounding: a rounding's root mean square is 0.42 units, so
#               this leaves room for five of them (partial results, their sum) on a kernel that rounds once
ALLOWED_MIN = {"fp64": 64 * 2.0**-53, "fp32": 64 * 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}

# A row that sees two keys is ill-conditioned, and in a sequence of fewer rows than this it makes the norm.
ROWS_ENOUGH = 256

# A kernel that is itself further off than this is broken, and no measure for a method: without a limit,
# gradients of zero (an error of 1) or a mask that is ignored would allow a method as much twice.
#   fp64, fp32  256 units of roundoff: four times the floor above. Kernels are at 6 to 11 units on short
#               sequences and lse adds 12 on long ones; products in TF32 are 8192 units off
#   bf16        four times what kernels show (2.3e-3 to 3.2e-3, whatever the length)
#   fp16        the same with 3 more bits
OWN_MAX = {"fp64": 256 * 2.0**-53, "fp32": 256 * 2.0**-24, "bf16": 1e-2, "fp16": 1e-2 * 2.0**-3}

# Below 6e-5 fp16 has no more than 2^-24 of resolution left, and the weights of n keys are about 1/n: rounding
# them costs dv 1.1e-8 n.
FP16_LOST = 2.0**-26


# Where every key weighs alike any one row may be wrong by so many of the floors above: the worst of millions
# of rows, each of as few roundings as a norm has.
UNIFORM_FLOORS = 4.0


def uniform_allowed(dtype: str) -> float:
    """What any row may be wrong by where every visible key weighs alike (bench/uniform.py)."""
    return UNIFORM_FLOORS * ALLOWED_MIN[dtype]


def timed_allowed(*allowed: float) -> float:
    """What the gradients of two iterations may differ by: either may be wrong by what is allowed of it."""
    return 2 * max(allowed)


def rows_checked(seqlen_local: int, world_size: int) -> int:
    """How many of a rank's query rows are looked at. (Keys: all of them.)"""
    halves = (seqlen_local // 2, seqlen_local - seqlen_local // 2)
    if seqlen_local * world_size <= EVERY_ROW_UP_TO:
        return seqlen_local
    return sum(min(half, ROWS_PER_PART) for half in halves)


def allowed(own: float, dtype: str, rows: int) -> float:
    """What a tensor may be wrong by: twice the kernel's own error, whatever the method does on the way.

    With few `rows` in the sequence more is allowed, as the root of how far they fall short. Where the kernel
    itself is broken nothing is: there is no measure.
    """
    if not kernel_is_sane(own, dtype, rows):
        return 0.0
    wanted = _few(dtype, rows) * max(KERNEL_FACTOR * own, ALLOWED_MIN[dtype])
    return min(wanted, KERNEL_FACTOR * own_max(dtype, rows))


def kernel_is_sane(own: float, dtype: str, rows: int) -> bool:
    """Whether a kernel with this error of its own may be the measure of a method; nan may not."""
    return 0 <= own <= own_max(dtype, rows)


def own_max(dtype: str, rows: int) -> float:
    """The largest error of a kernel alone that is rounding and no bug."""
    lost = FP16_LOST * rows if dtype == "fp16" else 0.0
    return _few(dtype, rows) * OWN_MAX[dtype] + lost


def _few(dtype: str, rows: int) -> float:
    return math.sqrt(max(1.0, ROWS_ENOUGH / rows)) if dtype in ("bf16", "fp16") else 1.0


# Sums over all rows that attention makes equal, and the tensors on either side (bench/balance.py).
BALANCES = {"dout.out - dv.v": ("out", "dv"), "dq.q - dk.k": ("dq", "dk")}
# A gap is normal with the answer's own error for its deviation, which is at most what is allowed of a tensor:
# this many deviations, for the largest of some dozen heads.
BALANCE_FACTOR = 4.0


def balance_allowed(*allowed: float) -> float:
    """What two sums may differ by, from what is allowed of the tensors on either side."""
    return BALANCE_FACTOR * math.hypot(*allowed)
