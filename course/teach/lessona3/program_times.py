"""time_programs: one copy, cut into few programs or into many, by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from roseinfer.kernels import triton_mode

from ..measure.median_times import median_ms

VALUES = 4096


def time_programs(kernel: Any, programs: Sequence[int]) -> dict[int, float]:
    """Measure the median time in ms of a copy of VALUES values, by how many programs share it.

    kernel: a copy kernel, called as kernel[(n,)](out, x, BLOCK=...). Raises ValueError for a number of programs that
    is no integer or does not divide VALUES.
    """
    triton_mode.require_triton()
    for number in programs:
        if not isinstance(number, int) or number < 1 or VALUES % number:
            raise ValueError(f"programs must be integers that divide {VALUES}, got {number}")
    device = "cuda" if triton_mode.MODE == "compile" else "cpu"
    x = torch.arange(float(VALUES), device=device)
    out = torch.empty_like(x)

    def launch(number: int) -> None:
        kernel[(number,)](out, x, BLOCK=VALUES // number)
        if device == "cuda":
            torch.cuda.synchronize()

    calls = {str(number): partial(launch, number) for number in programs}
    return {int(number): ms for number, ms in median_ms(calls).items()}
