"""with_loops: a stage whose compiled step has a loop of the learner's in the place of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import njit

from roseinfer.arguments import listed
from roseinfer.kernels.paged_numba import SUMS
from roseinfer.stage import Stage

from ..exercises.attempt import does_nothing


def with_loops(stage_class: type[Stage], name: str, **loops: Callable[..., None]) -> type[Stage]:
    """Make a subclass of a stage whose step, one compiled function, calls these loops instead of its own, by name.

    Plain functions are compiled, with parallel loops and the same freedom in the order of sums. The new step is
    compiled when it first runs, which takes some seconds. A loop that does nothing yet, `...`, is left out. name: of
    the new stage, in tables and races.

    Raises ValueError for a stage without such a step, and for a name that its step does not call.
    """
    kernel = getattr(stage_class, "kernel", None)
    step = getattr(kernel, "py_func", None)
    if not isinstance(step, FunctionType):
        raise ValueError(f"stage_class must have a compiled step, `kernel`, got {stage_class.name}")
    known = [each for each in step.__code__.co_names if hasattr(step.__globals__.get(each), "py_func")]
    if unknown := [each for each in loops if each not in known]:
        raise ValueError(f"loops must be of {listed(known)}, which the step calls, got {unknown[0]!r}")
    own: dict[str, Any] = {each: compiled_loop(loop) for each, loop in loops.items() if not does_nothing(loop)}
    if not own:
        return type(stage_class.__name__, (stage_class,), {"name": name})
    changed = FunctionType(step.__code__, step.__globals__ | own, step.__name__)
    return type(stage_class.__name__, (stage_class,), {"name": name, "kernel": staticmethod(njit(changed))})


def compiled_loop(loop: Callable[..., None]) -> Any:
    return loop if hasattr(loop, "py_func") else njit(parallel=True, fastmath=SUMS)(loop)
