"""Runs of a learner's kernel for 07.2: on the trials in their order, on drawn batches, and with its loads counted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels import triton_mode
from roseinfer.kernels.cases import PagedCase, paged_case

from ..exercises.attention_checks import Batch, attention_comparison, draw_lengths
from ..exercises.drawn import draw
from ..exercises.explain import explain_tensor
from ..exercises.kernel_checks import MISTAKES, TOLERANCE, Trial, plain_attention, trials
from ..exercises.wrong import Wrong
from ..measure.kernel_loads import GuardedKernel, OutOfBounds, count_loads

Launch = Callable[..., Tensor]  # (kernel, *case)


def require_trials(kernel: Any, launch: Launch) -> None:
    """Raise Wrong about the first of kernel_checks.trials() that the kernel does not pass."""
    for trial in trials():
        case = trial.make()
        _check_trial(trial, case, _run(kernel, launch, case, trial))


def _draw_batch(rng: Random) -> Batch:
    """Draw a batch of one of a few shapes: a GPU has to compile a kernel for each shape."""
    num_kv_heads, group, head_dim, block_size = rng.choice(((1, 1, 16, 4), (2, 1, 12, 2), (1, 2, 16, 8), (1, 3, 8, 32)))
    lengths = draw_lengths(rng, block_size, most=block_size, most_seqs=2)
    return lengths, num_kv_heads, group, head_dim, block_size, rng.choice(("fp32", "fp32", "fp32", "fp16", "bf16"))


BATCHES: list[Batch] = [
    ([0], 1, 1, 16, 4, "fp32"),
    ([4, 8, 3], 1, 1, 16, 4, "fp32"),
    ([40], 1, 1, 16, 4, "fp32"),  # 10 blocks
    ([33, 3], 1, 7, 8, 32, "fp32"),
    ([3, 1], 2, 2, 12, 2, "fp32"),  # query heads that share KV heads
    *draw(_draw_batch),
]
BATCHED = attention_comparison(BATCHES, MISTAKES, "cuda" if triton_mode.MODE == "compile" else "cpu")


def require_batches(kernel: Any, launch: Launch) -> None:
    """Raise Wrong about the smallest drawn batch on which the kernel differs from plain attention."""
    BATCHED(lambda *case: _run(kernel, launch, PagedCase(*case)))


def _run(kernel: Any, launch: Launch, case: PagedCase, trial: Trial | None = None) -> Tensor:
    """Launch the kernel. With a trial, an error names the trial and says what it means."""
    where = f"{trial.name}: " if trial else ""
    try:
        return launch(GuardedKernel(kernel), *case)
    except Exception as error:
        while type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):
            error = error.__cause__  # what the interpreter wraps; its traceback has the kernel's line
        if isinstance(error, OutOfBounds):
            raise Wrong(f"{where}{error}. Is a mask missing, or an address wrong?") from error
        if trial and case.q.dtype == torch.bfloat16:  # the interpreter has no bf16 constants
            raise Wrong(f"{where}{trial.if_wrong} ({type(error).__name__}: {error})") from error
        raise error


def _check_trial(trial: Trial, case: PagedCase, got: Tensor) -> None:
    tolerance = TOLERANCE[case.q.dtype]

    def differs(other: Tensor) -> str | None:
        return explain_tensor(got, other.to(got.dtype).to(got.device), tolerance, tolerance)

    message = differs(plain_attention(case))
    if message is None:
        return
    if got.isnan().any():
        raise Wrong(f"{trial.name}: {trial.if_nan}")
    for mistake, text in MISTAKES.items():
        made = plain_attention(case, mistake)
        if not made.isnan().any() and differs(made) is None:
            raise Wrong(f"{trial.name}: {text}")
    raise Wrong(f"{trial.name}: {trial.if_wrong or message}")


def require_loads(kernel: Any, launch: Launch) -> None:
    """Raise Wrong if a program loads a cached value more than once."""
    group = 2
    counts = count_loads(lambda *arguments: launch(kernel, *arguments), paged_case([20, 3], group=group))
    most = max(int(count.max()) for count in counts)
    if most > group:
        raise Wrong(
            f"right everywhere, but a cached value is loaded {most} times for {group} query heads; the budget is "
            f"{group}, once per program: keep the values that you have loaded"
        )
