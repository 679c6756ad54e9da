"""The kernel that notebook a3 shows; those of the rungs are the solutions."""

from __future__ import annotations

from roseinfer.kernels import triton_mode

tl = triton_mode.language()


@triton_mode.jit
def copy_kernel(out, x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))
