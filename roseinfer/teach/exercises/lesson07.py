"""Checkers of lesson 07: merging two softmax states, what a launch costs, and the learner's own kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels import triton_mode
from roseinfer.kernels.cases import PagedCase, paged_case

from ..measure.kernel_loads import GuardedKernel, OutOfBounds, count_loads, plain_function
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .kernel_checks import MISTAKES, TOLERANCE, Trial, plain_attention, trials

State = tuple[Tensor, Tensor, Tensor]
NAMES = ("top", "total", "acc")
HEADS, DIM = 3, 4
MERGES = {  # name -> scores' scale, and how many tokens each of the two states has seen
    "two states": (1.0, (5, 7)),
    "scores of several hundred": (300.0, (5, 7)),
    "a state that has seen nothing, and one that has": (1.0, (0, 7)),
    "a state that has seen something, and one that has not": (1.0, (5, 0)),
    "two states that have seen nothing": (1.0, (0, 0)),
}


@exercise(
    "07.1",
    title="Merge two running softmaxes",
    minutes=10,
    difficulty=2,
    importance=5,
    stub="def merge(a, b): ...",
    task="Two programs have each walked over a part of one sequence. A state is `(top, total, acc)`: the largest score "
    "[H], the sum of exp(score - top) [H], and the sum of exp(score - top) * value [H, D]. Return the state of both "
    "parts together. A part may be empty: then top is -inf, total and acc are 0. Leave the two states as they are.",
    hints=(
        "The new top is the larger of the two; each total and acc was summed up against its own top.",
        "exp(top - new_top) turns sums against the old top into sums against the new one; for acc with [:, None].",
        "-inf - -inf is NaN. Where the new top is -inf both are empty, and any finite number will do in its place: "
        "torch.where(new_top == -math.inf, 0.0, new_top).",
    ),
)
def merge_states(answer: Callable[[State, State], State]) -> None:
    for where, (scale, sizes) in MERGES.items():
        generator = torch.Generator().manual_seed(sum(sizes))
        scores = scale * torch.randn(HEADS, sum(sizes), generator=generator)
        values = torch.randn(sum(sizes), DIM, generator=generator)
        parts = [_state(s, v) for s, v in zip(scores.split(sizes, 1), values.split(sizes), strict=True)]
        given = [tuple(t.clone() for t in part) for part in parts]
        got = answer(*given)
        if not all(map(torch.equal, sum(given, ()), sum(parts, ()))):
            raise Wrong(f"{where}: a state that was handed in has changed: make new tensors, no += and no mul_")
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            raise Wrong(f"expected (top, total, acc), got {type(got).__name__}")
        _check_state(got, _state(scores, values), parts, where)


def _state(scores: Tensor, values: Tensor) -> State:
    """top [H], total [H], acc [H, D] of scores [H, T] and values [T, D]; T may be 0."""
    if not scores.size(1):
        return torch.full((HEADS,), -torch.inf), torch.zeros(HEADS), torch.zeros(HEADS, DIM)
    top = scores.amax(1)
    weights = torch.exp(scores - top[:, None])
    return top, weights.sum(1), weights @ values


def _check_state(got: State, want: State, parts: list[State], where: str) -> None:
    for name, mine, theirs, a, b in zip(NAMES, want, got, *parts, strict=True):
        message = explain_tensor(theirs, mine)
        if message is None:
            continue
        if explain_tensor(theirs, a + b) is None and name != "top":
            raise Wrong(f"{where}: {name} is the plain sum of both: they were summed up against different tops")
        if name == "acc" and explain_tensor(theirs, want[2] / want[1][:, None]) is None:
            raise Wrong(f"{where}: acc is divided by total already; such a state cannot be merged once more")
        if isinstance(theirs, Tensor) and theirs.isnan().any() and where.startswith("two states that"):
            raise Wrong(f"{where}: {name} is NaN: exp(-inf - -inf) came up")
        if isinstance(theirs, Tensor) and not theirs.isfinite().all() and where.startswith("scores"):
            raise Wrong(f"{where}: {name} is not finite: exp of a score that is not shifted by the top overflows")
        raise Wrong(f"{where}: {name}: {message}")


@exercise(
    "07.2",
    title="What one launch costs",
    minutes=10,
    difficulty=2,
    importance=4,
    stub="def cost(lengths, num_kv_heads, head_dim, tile, bytes_per_value): ...",
    task="One launch of stage 07's compiled kernel serves a layer: a program for each (sequence, KV head). Return "
    "three numbers: how many programs, how many tiles the program with the most work walks over, and how many bytes "
    "of K and V all programs load from the pool together. `lengths` are the cached tokens of each sequence.",
    hints=(
        "A program walks over `range(0, num_cached, tile)`: how many steps is that, the last one included?",
        "A masked load reads nothing: count cached tokens, not tiles, when you count bytes.",
        "A token of one KV head is head_dim values in K, and as many in V.",
    ),
)
def launch_cost(answer: Callable[[list[int], int, int, int, int], tuple[int, int, int]]) -> None:
    for lengths, num_kv_heads, head_dim, tile, width in (
        ([64], 1, 32, 16, 4), ([300, 64, 1, 130], 6, 32, 64, 4), ([0, 17, 16], 8, 128, 16, 2),
    ):  # fmt: skip
        token = 2 * head_dim * width * num_kv_heads
        tiles = [-(-n // tile) for n in lengths]
        want = len(lengths) * num_kv_heads, max(tiles), token * sum(lengths)
        where = f"lengths {lengths}, {num_kv_heads} KV heads of {head_dim}, tile {tile}, {width} bytes a value"
        got = answer(list(lengths), num_kv_heads, head_dim, tile, width)
        if not isinstance(got, tuple) or len(got) != 3:
            raise Wrong(f"expected (programs, tiles, bytes), got {got!r}")
        reasons = (
            {len(lengths): "a sequence has a program for each of its KV heads"},
            {
                max(lengths) // tile: "the last tile counts, full or not",
                sum(tiles): "that is all sequences together; programs run side by side, so the longest counts",
            },
            {
                want[2] // 2: "K and V are both loaded",
                want[2] // width: "those are values, not bytes",
                token * tile * sum(tiles): "a masked load reads nothing, count the cached tokens alone",
                token * max(lengths) * len(lengths): "nobody is padded to the longest sequence here",
                want[2] // num_kv_heads: "that is one KV head",
            },
        )
        for name, mine, theirs, known in zip(("programs", "tiles", "bytes"), want, got, reasons, strict=True):
            if theirs != mine:
                reason = known.get(theirs, "walk through one program of the kernel by hand")
                raise Wrong(f"{where}: {name} is not {theirs!r}: {reason}")


@exercise(
    "07.3",
    title="Your own paged attention kernel",
    minutes=30,
    difficulty=4,
    importance=5,
    stub="""
@triton_mode.jit
def my_kernel(
    out, q, k, v, k_cache, v_cache, block_table, context_lens, scale, table_row,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    ...
""",
    task="Write the kernel: **one program for each (sequence, query head)**, launched by `launch` above, so every "
    "tensor but the table is contiguous. Walk over the blocks in tiles of BLOCK_SIZE tokens with the running softmax, "
    "and store [HEAD_DIM] values of `out`. It is tried on ragged batches over a pool full of NaN, on shared KV heads, "
    "on a head size that is no power of two, in fp32, fp16 and bf16.",
    hints=(
        "seq, head = tl.program_id(0), tl.program_id(1). Begin with the new token: top is its score, a tl.sum over "
        "dim; total is 1.0 and acc is its v. Store acc and pass the first trial, then write the loop.",
        "In the loop: block = tl.load(block_table + seq * table_row + start // BLOCK_SIZE); the pool's element "
        "(block, slot, kv_head, dim) lies at ((block * BLOCK_SIZE + slot) * NUM_KV_HEADS + kv_head) * HEAD_DIM + dim.",
        "Offsets and masks are [BLOCK_SIZE, DIM_PAD]: slot[:, None] and dim[None, :]. Scores are tl.sum(query[None, :] "
        "* keys, axis=1), -inf where the slot holds no token; then new_top, weights, shrink as in `add_tile`.",
    ),
)
def own_kernel(answer: Any, launch: Callable[..., Tensor]) -> None:
    function = plain_function(answer)
    if function is answer:
        raise Wrong("expected a Triton kernel: decorate the function with @triton_mode.jit")
    for trial in trials():
        case = trial.make()
        _check_trial(trial, case, _run(answer, launch, case, trial))
    if triton_mode.MODE == "interpret":
        _check_loads(answer, launch)


def _run(kernel: Any, launch: Callable[..., Tensor], case: PagedCase, trial: Trial) -> Tensor:
    try:
        return launch(GuardedKernel(kernel), *case)
    except Exception as error:
        while type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):
            error = error.__cause__  # what the interpreter wraps; its traceback has the kernel's line
        if isinstance(error, OutOfBounds):
            raise Wrong(f"{trial.name}: {error}. Is a mask missing, or an address wrong?") from error
        if case.q.dtype == torch.bfloat16:  # the interpreter has no bf16 constants
            raise Wrong(f"{trial.name}: {trial.if_wrong} ({type(error).__name__}: {error})") from error
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


def _check_loads(kernel: Any, launch: Callable[..., Tensor]) -> None:
    group = 2
    counts = count_loads(lambda *arguments: launch(kernel, *arguments), paged_case([20, 3], group=group))
    most = max(int(count.max()) for count in counts)
    if most > group:
        raise Wrong(
            f"right everywhere, but a cached value is loaded {most} times for {group} query heads; the budget is "
            f"{group}, once a program: keep what a load gave you"
        )
