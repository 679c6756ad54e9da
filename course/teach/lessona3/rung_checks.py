"""A learner's kernel, run on one case: what its programs touch is judged here, what they compute is compared later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course.contract.broken_promises import count
from roseinfer.kernels import triton_mode

from ..exercises.drawn import Case, Comparison, Describe, Expected
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Failed, Wrong
from ..measure.kernel_loads import plain_function
from .arena import Arena
from .rung_record import record
from .rungs import RUNGS, Rung
from .source_hints import calls_softmax, hint_of
from .watch import Descriptor, Launch, Record, WrongAccess, innermost, recorded

WITH_TILES = ("a3.5", "a3.7", "a3.8")  # of two dimensions
UNFIT = (
    "two tiles do not fit. A mask of rows or slots needs [:, None] beside a tile with two dimensions. tl.sum over "
    "axis=1 leaves a value per row or slot, over axis=0 one per column"
)
OTHER_MISSING = "masks lanes and gives no `other`: these lanes may hold anything, and here they reached the result"


def register_rung(
    rung_id: str,
    cases: Sequence[Case],
    right: Callable[..., Tensor],
    mistakes: Mapping[str, Callable[..., Tensor]],
    describe: Describe,
    if_nan: str | Callable[..., str] = "",
    budget: Mapping[str, int] | None = None,
) -> None:
    """Register the checker of a rung.

    right(*case): the result in fp32. if_nan: what NaN means that comes from no load, or what it means on a case.
    budget: how often a value of a tensor may be loaded at most.
    """
    rung = RUNGS[rung_id]
    comparison = Comparison(
        cases, Expected(right, mistakes, explain_tensor), describe, partial(_run, rung, if_nan=if_nan)
    )

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
            _require_budget(record(rung_id, rung.shown, answer), budget)

    register(rung_id, check, comparison)


def _run(rung: Rung, kernel: Any, *case: Any, if_nan: str | Callable[..., str]) -> Tensor:
    """Return `out` of the launch. Raises Wrong for an access that is wrong, whatever the values are."""
    launch = rung.launch(*case)
    if triton_mode.MODE == "compile":
        return run_unwatched(launch, kernel, "cuda")
    arena = Arena(launch.tensors)
    try:
        with recorded(arena, launch.programs) as found:
            out = launch.run(kernel, arena)
    except Exception as error:
        error = innermost(error)
        if isinstance(error, Descriptor):
            raise Wrong(str(error)) from error
        if isinstance(error, WrongAccess):
            raise Wrong(f"{error}. {error.hint}") from error
        if rung.id in WITH_TILES and isinstance(error, ValueError) and "incompatible" in str(error):
            error.args = (f"{error}: {UNFIT}",)
        raise error
    _require_stores(found, arena)
    if out.isnan().any():
        meaning = if_nan if isinstance(if_nan, str) else if_nan(*case)
        raise Wrong(_explain_nan(found, arena, meaning, lambda: launch.run(kernel, Arena(launch.tensors))))
    return out.clone()


def run_unwatched(launch: Launch, kernel: Any, device: str) -> Tensor:
    """Return `out` of a launch whose accesses are not seen. Raises Wrong when memory outside of out has changed."""
    arena = Arena(launch.tensors, device)
    place, before = arena.places["out"], arena.buffer.clone()
    out = launch.run(kernel, arena).cpu()
    before[place.start : place.start + place.size] = arena.buffer[place.start : place.start + place.size]
    require_unchanged([before], [arena.buffer], ["memory outside of out"], ": a kernel writes nothing but out")
    return out.clone()


def _require_stores(found: Record, arena: Arena) -> None:
    """Raise Wrong unless exactly one program stores each element of out."""
    owners: dict[int, set[int]] = {}
    for access in found.accesses:
        if access.kind == "store":
            for offset in access.touched:
                owners.setdefault(offset, set()).add(access.program)
    start, size = arena.places["out"]
    missing = [offset for offset in range(size) if offset not in owners]
    shared = next((offset for offset, programs in owners.items() if len(programs) > 1), None)
    several = f"{len(owners[shared])} programs store {arena.name_at(start + shared)}" if shared is not None else ""
    if missing:
        what = f"{arena.name_at(start + missing[0])} is never stored ({len(missing)} of {size} values are not)"
        raise Wrong(what + (f", and {several}: each program has a part of its own" if several else ""))
    if several:
        raise Wrong(f"{several}: each program has a part of its own, by tl.program_id(0)")


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
            often = count(times, "time")
            raise Wrong(f"right everywhere, but a program loads a value of {name} {often}; the budget is {most}")


def softmax_of(x: Tensor) -> Tensor:
    """Compute the softmax of each row in fp64, as fp32."""
    return x.double().softmax(-1).float()


def padded(x: Tensor, columns: int, value: float = 0.0) -> Tensor:
    """Pad x [rows, n] with columns that hold a value."""
    return torch.nn.functional.pad(x, (0, columns - x.size(1)), value=value)


def in_memory(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Read what lies at these strides from x's first element on; zeros after the end of its memory."""
    size = x.untyped_storage().nbytes() // x.element_size()
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    memory = torch.cat([x.as_strided((size,), (1,), 0), torch.zeros(max(0, last + 1 - size))])
    return memory.as_strided(shape, strides)
