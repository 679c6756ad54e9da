"""time_barriers: what the parallel loops of a step cost when there is nothing to do in them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange

from roseinfer.display.table import Table
from roseinfer.kernels.numba_calls import run_parallel

from ..measure.median_times import median_ms
from ..views.rows_table import table

LOOPS = 100  # parallel loops that are timed together


@njit(parallel=True)
def empty_loop(out: np.ndarray) -> None:
    for i in prange(len(out)):
        out[i] = i


@njit
def many_loops(out: np.ndarray) -> None:
    for _ in range(LOOPS):
        empty_loop(out)


def time_barriers(kernel: Callable[..., Any], num_layers: int) -> Table:
    """Time parallel loops with one number per thread: only sharing out the tasks and waiting for the threads is left.

    kernel: a compiled step, whose parallel loops are counted in its source.
    """
    in_layers, around = loops_of_step(kernel)
    count = num_layers * in_layers + around
    out = np.zeros(2)
    one_us = 1e3 * median_ms({"loops": lambda: run_parallel(many_loops, out)})["loops"] / LOOPS
    row = {"layers": num_layers, "parallel loops per layer": in_layers, "around": around, "in a step": count}
    formats = {"µs per loop": "{:.1f}", "µs per step": "{:.0f}"}
    return table([row | {"µs per loop": one_us, "µs per step": one_us * count}], list(formats), formats=formats)


def loops_of_step(kernel: Any) -> tuple[int, int]:
    """Count the parallel loops of a step, in each layer and around the layers: calls of functions that have one."""
    names = kernel.py_func.__globals__
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.py_func)))
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef)

    def calls(nodes: list[ast.stmt]) -> int:
        found = [node for each in nodes for node in ast.walk(each) if isinstance(node, ast.Call)]
        loops = [names.get(node.func.id) for node in found if isinstance(node.func, ast.Name)]
        return sum(bool(getattr(loop, "targetoptions", {}).get("parallel")) for loop in loops)

    layers = [node for node in body.body if isinstance(node, ast.For)][-1]
    in_layers = calls(layers.body)
    return in_layers, calls(body.body) - in_layers
