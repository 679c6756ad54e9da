"""Runs of a learner's kernel for 07.2: on drawn batches, and with its loads counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels import triton_mode
from roseinfer.kernels.cases import paged_case

from ..exercises.attention_checks import LARGE_SCORES, Batch, attention_comparison, draw_lengths
from ..exercises.drawn import draw
from ..exercises.solutions import solution
from ..exercises.wrong import Wrong
from ..measure.kernel_loads import GuardedKernel, OutOfBounds, count_loads

Launch = Callable[..., Tensor]  # (kernel, *case)

COLUMN = "block_table + seq * table_row + start // BLOCK_SIZE"
KERNEL_MISTAKES = {
    "the new token's weight is exp(0) = 1: start from total = 1 and acc = its v": {"total = 1.0": "total = 0.0"},
    "the scores are not multiplied by `scale`": {" * scale": ""},
    "when a larger score comes, acc must shrink by exp(top - new_top)": {"acc = acc * shrink": "acc = acc"},
    "when a larger score comes, total must shrink by exp(top - new_top)": {"total = total * shrink": "total = total"},
    "no exp may get an argument above 0: the new top is the larger of the old one and the tile's": {
        "tl.maximum(top, tl.max(scores, axis=0))": "tl.max(scores, axis=0)"
    },
    "the weighted sum is not divided by total at the end": {"acc / total": "acc"},
    "slots after the last token take part with a score of 0: their score must be -inf": {'float("-inf")': "0.0"},
    "a slot past the sequence's own context_lens was read: mask the loads of K and V, with other=0.0": {
        "cached[:, None] & real": "(slot >= 0)[:, None] & real"
    },
    "each sequence's last cached token is left out: token < num_cached": {"slot < num_cached": "slot < num_cached - 1"},
    "cached keys are summed up where cached values should be: these are in v_cache": {"v_cache + at": "k_cache + at"},
    "the id stands in block_table, it is not the index of the block": {
        f"tl.load({COLUMN})": "(0 * seq + start // BLOCK_SIZE)"
    },
    "every tile reads the sequence's first block: the table's column is start // BLOCK_SIZE": {
        COLUMN: "block_table + seq * table_row"
    },
    "every sequence reads the first sequence's blocks: row `seq` of the table begins at seq * table_row": {
        COLUMN: "block_table + start // BLOCK_SIZE"
    },
    "a wrong KV head: query head h belongs to KV head h // (NUM_HEADS // NUM_KV_HEADS)": {
        "head // (NUM_HEADS // NUM_KV_HEADS)": "head % NUM_KV_HEADS"
    },
    "give masked loads other=0.0, and mask every load and the store with dim < HEAD_DIM": {
        "tl.load(q + q_at, mask=real, other=0.0)": "tl.load(q + q_at, mask=real)"
    },
}


def _draw_batch(rng: Random) -> Batch:
    """Draw a batch of one of a few shapes: a GPU has to compile a kernel for each shape."""
    num_kv_heads, group, head_dim, block_size = rng.choice(((1, 1, 16, 4), (2, 1, 12, 2), (1, 2, 16, 8), (1, 3, 8, 32)))
    lengths = draw_lengths(rng, block_size, most=block_size, most_seqs=2)
    return lengths, num_kv_heads, group, head_dim, block_size, rng.choice(("fp32", "fp32", "fp32", "fp16", "bf16"))


BATCHES: list[Batch] = [
    ([0], 1, 1, 16, 4, "fp32"),
    ([4], 1, 1, 16, 4, "fp32"),
    ([4, 8, 3], 1, 1, 16, 4, "fp32"),
    ([40], 1, 1, 16, 4, "fp32"),  # 10 blocks
    ([33, 3], 1, 7, 8, 32, "fp32"),
    ([3, 1], 2, 2, 12, 2, "fp32"),  # query heads that share KV heads
    ([20, 3], 1, 2, 80, 16, "fp32"),  # a head size that is padded to 128
    *LARGE_SCORES,
    *draw(_draw_batch),
]


def require_batches(kernel: Any, launch: Launch) -> None:
    """Raise Wrong about the smallest batch on which the kernel differs from plain attention."""
    names = {"triton_mode": triton_mode, "tl": triton_mode.language()}
    mistakes = {
        why: partial(_mistaken, solution("07.2", changes, **names), launch) for why, changes in KERNEL_MISTAKES.items()
    }
    device = "cuda" if triton_mode.MODE == "compile" else "cpu"
    attention_comparison(BATCHES, mistakes, device)(partial(_run, kernel, launch))


def _mistaken(kernel: Any, launch: Launch, q: Tensor, *case: Tensor) -> Tensor:
    """Run a kernel with a mistake. Where that ends in an error, return what no answer returns."""
    try:
        return _run(kernel, launch, q, *case)
    except Exception:
        return q.new_empty(0)


def _run(kernel: Any, launch: Launch, q: Tensor, *case: Tensor) -> Tensor:
    try:
        return launch(GuardedKernel(kernel), q, *case)
    except Exception as error:
        while type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):
            error = error.__cause__  # what the interpreter wraps; its traceback has the kernel's line
        if isinstance(error, OutOfBounds):
            raise Wrong(f"{error}. Is a mask missing, or an address wrong?") from error
        if q.dtype == torch.bfloat16:  # the interpreter has no bf16 constants
            upcast = "right in fp32? Then upcast after every load, before any arithmetic"
            raise Wrong(f"{upcast} ({type(error).__name__}: {error})") from error
        raise error


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
