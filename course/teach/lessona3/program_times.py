"""time_programs, say_programs: one copy, cut into few programs or into many, by the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from roseinfer.kernels import triton_mode

from ..measure.median_times import median_ms
from ..views.said import Said, say

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


def say_programs(ms: Mapping[int, float]) -> Said:
    """Say how two numbers of programs compare, from time_programs. Raises ValueError for more or fewer numbers."""
    if len(ms) != 2:
        raise ValueError(f"ms must have the times of two numbers of programs, got {len(ms)}: {list(ms)}")
    few, many = sorted(ms)
    times = f"{few} programs took {ms[few]:.3g} ms, {many} programs {ms[many]:.3g} ms"
    if triton_mode.MODE == "compile":
        said = "This GPU runs them side by side, and most of the time is the launch itself."
        return say("the same copy in few and in many programs", f"{times}. {said}")
    each = (ms[many] - ms[few]) / (many - few)
    if each <= 0:
        said = "No cost per program is to be seen in these times: run the cell again when nothing else runs."
        return say("the same copy in few and in many programs", f"{times}. {said}")
    launch = max(ms[few] - few * each, 0.0)
    return say(
        "the same copy in few and in many programs",
        f"{times}. That is {each:.2g} ms per program, whatever its block, and {launch:.2g} ms for the launch.",
    )
