"""What the checkers of lesson 18 share: loops judged as plain Python, task by task, and then compiled."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.core.errors import NumbaError
from torch import Tensor

from roseinfer.kernels.paged_numba import SUMS

from ..exercises.explain import explain_tensor
from ..exercises.wrong import Wrong
from .races import races_of
from .watched import watch

LEFT = 100.0  # what `out` holds before, as memory that was used holds anything
MANY = 64  # rows: with fewer, a task for a block of rows may have nearly all
Arrays = dict[str, Any]
Make = Callable[..., Arrays]  # (*case) -> arguments by name, `out` among them


def explain_values(got: Any, want: Any) -> str | None:
    return explain_tensor(torch.as_tensor(got), torch.as_tensor(want))


def run_loops(
    make: Make, shared: str, changes: tuple[str, ...] = ("out",), most_reads: Callable[..., int] | None = None
) -> Callable:
    """Make a call for a Comparison: it runs an answer as plain Python, the tasks of each loop in a drawn order.

    The call raises Wrong for a race, for work that threads do not share, and for a changed argument other than those
    named. shared: the argument whose rows are the work: tasks alone read it, and where it has many rows, no task most.
    most_reads: how often a case may read elements of the weight; None for no limit.
    """

    def call(answer: Callable[..., Any], *case: Any) -> Tensor:
        arrays = make(*case)
        before = {name: np.copy(x) for name, x in arrays.items()}
        with np.errstate(all="ignore"):
            returned, log = watch(answer, arrays, random.Random(0))
        if returned is not None:
            raise Wrong("your function returns something; write it to out and return nothing")
        for name, old in before.items():
            if name not in changes and not np.array_equal(arrays[name], old, equal_nan=True):
                raise Wrong(f"{name} was handed in, and you have changed it")
        if races := races_of(log, arrays):
            raise Wrong(f"tasks of one parallel loop may run at the same time, and there is a race. {races[0]}")
        in_tasks = {array for array, _, _ in log.writes}
        if not log.tasks or "out" in log.written_outside - in_tasks:
            raise Wrong("no threads share this work: loop with prange where out is written")
        if shared in log.read_outside:
            raise Wrong(f"{shared} is read outside of the parallel loop, where one thread works alone")
        if len(arrays[shared]) >= MANY and 2 * log.most_read_by_a_task(shared) > arrays[shared].size:
            raise Wrong(f"one task reads most of {shared}, and the other threads wait: share its rows out with prange")
        if most_reads and (reads := log.num_reads["weight"]) > (most := most_reads(*case)):
            raise Wrong(f"the weight's elements are read {reads:,} times, allowed: {most:,}")
        return torch.from_numpy(np.array(arrays["out"]))

    return call


def output_of(make: Make, answer: Callable[..., Any], *case: Any) -> np.ndarray:
    """Return what a function writes to `out`, called as it is."""
    arrays = make(*case)
    with np.errstate(all="ignore"):
        answer(*arrays.values())
    return np.array(arrays["out"])


def require_compiled(answer: Any, arrays: Arrays, right: Any) -> None:
    """Run the function compiled, and raise Wrong for what Numba refuses or only threads get wrong."""
    try:
        njit(parallel=True, fastmath=SUMS)(python_of(answer))(*arrays.values())
    except (NumbaError, ImportError) as error:  # np.dot wants SciPy
        raise Wrong(f"right as plain Python, but Numba cannot compile it: {first_lines(error)}") from error
    if message := explain_values(arrays["out"], right):
        raise Wrong(f"right as plain Python, wrong when it is compiled: {message}")


def python_of(answer: Any) -> Any:
    return getattr(answer, "py_func", answer)


def num_allocations(answer: Any, arrays: Mapping[str, Any]) -> int:
    """Count the places in the machine code of a function where it asks for memory for a new array."""
    compiled = njit(python_of(answer))
    compiled(*arrays.values())
    return sum(len(re.findall(r"call [^\n]*@NRT_MemInfo_alloc\w*\(", ir)) for ir in compiled.inspect_llvm().values())


def first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])
