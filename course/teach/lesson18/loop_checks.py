"""What the checkers of lesson 18 share: loops judged as plain Python, task by task, and then compiled."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.core.errors import NumbaError
from torch import Tensor

from roseinfer.kernels.paged_numba import SUMS

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Case, Comparison, inputs
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.wrong import Wrong
from .races import races_of
from .watched import watch

MANY = 64  # rows: with fewer, a task for a block of rows may have nearly all
Arrays = dict[str, Any]


def register_loops(
    exercise_id: str,
    make: Callable[..., Arrays],
    sizes: tuple[str, ...],
    cases: list[Case],
    shared: str,
    mistakes: Mapping[str, Mapping[str, Mapping[str, str]]],
    most_reads: Callable[..., int] | None = None,
) -> None:
    """Register a checker that runs an answer's loops as plain Python, then compiled on the first case.

    make: the arguments of a case by name, in their order. shared: the argument whose rows are the work of the tasks.
    mistakes: for each argument that an answer writes. most_reads: how often a case may read elements of `shared`.
    """

    def solved(answer: Callable[..., Any], *case: Any) -> dict[str, Tensor]:
        arrays = make(*case)
        with np.errstate(all="ignore"):
            answer(*arrays.values())
        return _written(arrays, mistakes)

    def watched(answer: Callable[..., Any], *case: Any) -> dict[str, Tensor]:
        arrays = make(*case)
        _run_loops(answer, arrays, shared, mistakes, most_reads(*case) if most_reads else None)
        return _written(arrays, mistakes)

    expected = as_solved_by_name(exercise_id, mistakes, explain_tensor, solved, np=np, prange=range)
    comparison = Comparison(cases, expected, inputs(*sizes, "seed"), watched)

    def check(answer: Any) -> None:
        comparison(answer)
        arrays = make(*cases[0])
        run_compiled(answer, arrays)
        for name, got in _written(arrays, mistakes).items():
            if message := explain_tensor(got, expected[name].right(*cases[0])):
                raise Wrong(f"right as plain Python, wrong when it is compiled: {name}: {message}")

    register(exercise_id, check, comparison)


def _written(arrays: Arrays, names: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(arrays[name]) for name in names}


def _run_loops(
    answer: Callable[..., Any], arrays: Arrays, shared: str, written: Mapping[str, Any], most_reads: int | None
) -> None:
    """Run an answer as plain Python, the tasks of each loop in a drawn order.

    Raises Wrong for a race, for work that threads do not share, and for a changed argument other than those written.
    """
    before = {name: np.copy(x) for name, x in arrays.items()}
    with np.errstate(all="ignore"):
        returned, log = watch(answer, arrays, random.Random(0))
    if returned is not None:
        raise Wrong("your function returns something; write it to out and return nothing")
    for name, old in before.items():
        if name not in written and not np.array_equal(arrays[name], old):
            raise Wrong(f"{name} was handed in, and you have changed it")
    if races := races_of(log, arrays):
        raise Wrong(f"tasks of one parallel loop may run at the same time, and there is a race. {races[0]}")
    if not log.tasks or "out" in log.written_outside - {array for array, _, _ in log.writes}:
        raise Wrong("no threads share this work: loop with prange where out is written")
    if shared in log.read_outside:
        raise Wrong(f"{shared} is read outside of the parallel loop, where one thread works alone")
    if len(arrays[shared]) >= MANY and 2 * log.most_read_by_a_task(shared) > arrays[shared].size:
        raise Wrong(f"one task reads most of {shared}, and the other threads wait: share its rows out with prange")
    if most_reads is not None and (reads := log.num_reads[shared]) > most_reads:
        raise Wrong(f"elements of {shared} are read {reads:,} times, allowed: {most_reads:,}")


def run_compiled(answer: Any, arrays: Arrays) -> None:
    """Call a function compiled. Raises Wrong for what Numba refuses.

    Without threads, for which Numba would compile three times as long: its tasks have been tried in a drawn order.
    """
    compiled = njit(fastmath=SUMS)(getattr(answer, "py_func", answer))
    try:
        compiled(*arrays.values())
    except (NumbaError, ImportError) as error:  # np.dot wants SciPy
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise Wrong(f"right as plain Python, but Numba cannot compile it: {' '.join(lines[:3])}") from error
