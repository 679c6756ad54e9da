"""A learner's kernel, run on one case: what its programs touch is judged here, what they compute is compared later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from torch import Tensor

from roseinfer.arguments import counted
from roseinfer.kernels import triton_mode

from ..exercises.drawn import Case, Comparison, Describe, Expected
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Failed, Wrong
from ..measure.kernel_loads import plain_function
from .arena import Arena
from .rungs import Rung, solved
from .source_hints import calls_softmax, hint_of
from .watch import Launch, Record, WrongAccess, run_recorded

UNFIT = (
    "two tiles do not fit. A mask of rows or slots needs [:, None] beside a tile with two dimensions. tl.sum over "
    "axis=1 leaves a value per row or slot, over axis=0 one per column"
)
OWN_PART = "each program has a part of its own"
OTHER_MISSING = "masks lanes and gives no `other`: these lanes may hold anything, and here they reached the result"


Mistakes = Mapping[str, Mapping[str, str]]  # what is said about a kernel -> the changes that make it of the solution


def register_rung(
    rung: Rung,
    cases: Sequence[Case],
    mistakes: Mistakes,
    describe: Describe,
    if_nan: str = "",
    budget: Mapping[str, int] | None = None,
) -> None:
    """Register the checker of a rung.

    if_nan: what NaN means that comes from no load.
    budget: how often a value of a tensor may be loaded at most.
    """
    known = {why: partial(_out_of, rung, tuple(changes.items())) for why, changes in mistakes.items()}
    expected = Expected(lambda *case: rung.right(**rung.launch(*case).arguments), known, explain_tensor)
    comparison = Comparison(cases, expected, describe, partial(_run, rung, if_nan=if_nan))

    def check(answer: Any) -> None:
        if plain_function(answer) is answer:
            raise Wrong("expected a Triton kernel: decorate the function with @triton_mode.jit")
        if calls_softmax(answer):
            raise Wrong("write the softmax by hand, from tl.max, tl.exp and tl.sum: tl.softmax is no answer")
        try:
            comparison(answer)
        except Wrong as wrong:
            if not (hint := hint_of(answer)):
                raise
            if isinstance(wrong, Failed):
                wrong.error.args = (f"{wrong.error}: {hint}",)  # its traceback has the line
                raise
            raise Wrong(f"{wrong}{'' if str(wrong)[-1] in '.?' else '.'} In your kernel: {hint}") from wrong
        if budget and triton_mode.MODE == "interpret":
            _require_budget(run_recorded(rung.launch(*rung.shown), answer)[0], budget)

    register(rung.id, check, comparison)


@cache
def _out_of(rung: Rung, changes: tuple[tuple[str, str], ...], *case: Any) -> Tensor:
    """Return what the solution with these changes stores: a mistake."""
    launch = rung.launch(*case)
    arena = Arena(launch.tensors, "cuda" if triton_mode.MODE == "compile" else "cpu")
    with np.errstate(all="ignore"):
        return launch.run(solved(rung.id, changes), arena).cpu().clone()


def _run(rung: Rung, kernel: Any, *case: Any, if_nan: str) -> Tensor:
    """Return `out` of the launch. Raises Wrong for an access that is wrong, whatever the values are."""
    launch = rung.launch(*case)
    if triton_mode.MODE == "compile":
        return run_unwatched(launch, kernel, "cuda")
    try:
        found, arena = run_recorded(launch, kernel)
    except WrongAccess as error:
        raise Wrong(f"{error}. {error.hint}") from error
    except ValueError as error:
        if "incompatible" in str(error):
            error.args = (f"{error}: {UNFIT}",)
        raise
    out = arena.tensors["out"]
    _require_parts(found, arena)
    if out.isnan().any():
        raise Wrong(_explain_nan(found, arena, if_nan, lambda: launch.run(kernel, Arena(launch.tensors))))
    return out.clone()


def run_unwatched(launch: Launch, kernel: Any, device: str) -> Tensor:
    """Return `out` of a launch whose accesses are not seen. Raises Wrong when memory outside of out has changed."""
    arena = Arena(launch.tensors, device)
    place, before = arena.places["out"], arena.buffer.clone()
    out = launch.run(kernel, arena).cpu()
    before[place.start : place.start + place.size] = arena.buffer[place.start : place.start + place.size]
    require_unchanged([before], [arena.buffer], ["memory outside of out"], ": a kernel writes nothing but out")
    return out.clone()


def _require_parts(found: Record, arena: Arena) -> None:
    """Raise Wrong unless each program stores a part of out, no two the same element, and all share the work."""
    storing = found.programs_of("store", "out")
    start, size = arena.places["out"]
    missing = [offset for offset in range(size) if offset not in storing]
    shared = next((offset for offset, programs in storing.items() if len(programs) > 1), None)
    several = f"{len(storing[shared])} programs store {arena.name_at(start + shared)}" if shared is not None else ""
    if missing:
        what = f"{arena.name_at(start + missing[0])} is never stored ({len(missing)} of {size} values are not)"
        raise Wrong(what + (f", and {several}: {OWN_PART}" if several else ""))
    if several:
        raise Wrong(f"{several}: {OWN_PART}, by tl.program_id(0)")
    if idle := set(range(found.programs)) - set().union(*storing.values()):
        raise Wrong(f"program {min(idle)} stores nothing: {OWN_PART}, by tl.program_id(0)")
    largest = max((name for name in arena.tensors if name != "out"), key=lambda name: arena.tensors[name].numel())
    loading = found.programs_of("load", largest)
    if len(loading) == arena.tensors[largest].numel() and all(
        len(programs) == found.programs > 1 for programs in loading.values()
    ):
        raise Wrong(f"every program loads every value of {largest}: {OWN_PART}")


def _explain_nan(found: Record, arena: Arena, if_nan: str, run_plainly: Callable[[], Tensor]) -> str:
    """Say where NaN comes from. run_plainly: the launch with 0 in masked lanes without `other`."""
    stored: set[int] = set()
    for access in found.accesses:
        if access.kind == "store":
            stored.update(access.touched)
            continue
        for offset in access.touched if access.tensor != "block_table" else ():
            position = arena.places[access.tensor].start + offset
            what = f"NaN in out: program {access.program} loads {arena.name_at(position)}"
            if access.tensor == "out":
                if offset not in stored:
                    return f"{what} before it is stored"
            elif arena.buffer[position].isnan():
                hint = "Is the mask by context_len, and the block's id from block_table?"
                return f"{what}, which is NaN: no token is there. {hint}"
    open_loads = [access for access in found.accesses if access.is_open]
    if open_loads and not run_plainly().isnan().any():
        first = open_loads[0]
        return f"NaN in out: program {first.program}'s load of {first.tensor} {OTHER_MISSING}"
    return f"NaN in out, though no NaN was loaded: {if_nan}" if if_nan else "NaN in out, though no NaN was loaded"


def _require_budget(found: Record, budget: Mapping[str, int]) -> None:
    for name, most in budget.items():
        loads = Counter((each.program, offset) for each in found.of("load", name) for offset in each.touched)
        times = max(loads.values(), default=0)
        if times > most:
            often = counted(times, "time")
            raise Wrong(f"right everywhere, but a program loads a value of {name} {often}; the budget is {most}")
