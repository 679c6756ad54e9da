"""Stage 09, Numba paged attention: stage 07's kernel as plain loops, compiled for a CPU.

What was slow:  without a GPU no paged stage is fast. Stage 06's attention is about twenty PyTorch
                operations for each block of the longest sequence, and copies every block that it reads; stage 07's
                kernel runs in an interpreter.
The change:     the same algorithm as loops over single numbers, which Numba compiles to machine code. A task is what a
                Triton program was: one sequence and the query heads that share a KV head. Threads share the tasks.
What it gives:  one call a layer on any machine that has a CPU. Each cached row is read in place, once, and
                nothing is padded: a task stops at its own sequence's last token.
Where it loses: in this pool, consecutive rows of a head are a whole token apart, so a task reads in small pieces. The
                first use of a dtype waits for the compiler. Threads get equal numbers of tasks, so with more threads
                than KV heads one may get all the long sequences. On short contexts, attention is little of a step.

Numba: Lam, Pitrou and Seibert, "Numba: a LLVM-based Python JIT compiler", 2015. Online softmax as in stage 05.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache

import numba
import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload
from torch import Tensor

from roseinfer.models import Model
from roseinfer.profiling import span

from .s07_triton_paged import BlockTableCache, paged_attention_reference

__all__ = ["NumbaPaged", "paged_attention_numba", "paged_attention_reference", "paged_decode_loop"]

# What the compiler may do to sums: unless it may reorder them, it cannot add 16 products at once. fastmath=True would
# also set "nnan" and "ninf", which assume that no number is NaN or infinite: a model that produces NaN might then not
# show it.
SUMS = {"reassoc", "contract", "nsz", "arcp", "afn"}
# NumPy has no bfloat16. A pool of 16-bit numbers goes to the loops as integers: their type tells what the bits mean.
BITS = {torch.float32: torch.float32, torch.bfloat16: torch.int16, torch.float16: torch.uint16}
SPAN = "roseinfer.paged_attention"
# Numba has several threading layers; the one that is always available aborts the process when two callers overlap.
one_caller = threading.Lock()


def as_float(stored):
    """An element of the pool as an fp32 number. When compiled, it is one of the three functions below."""
    return stored


@overload(as_float, inline="always")
def compiled_as_float(stored):
    if stored == types.float32:
        return lambda stored: stored
    if stored == types.int16:  # bfloat16 is the upper half of an fp32
        return lambda stored: np.int32(np.int32(stored) << 16).view(np.float32)
    # float16: shift exponent and fraction to fp32's positions, then change the exponent's bias from 15 to 127.
    return lambda stored: (
        np.int32((np.int32(stored) & 0x8000) << 16 | (np.int32(stored) & 0x7FFF) << 13).view(np.float32)
        * np.float32(2.0**112)
    )


def paged_decode_loop(out, q, k, v, k_cache, v_cache, block_table, context_lens, scale):
    """Attention of every sequence, one task for each KV head. Also runs as plain Python, on fp32 caches."""
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    for task in prange(num_seqs * num_kv_heads):
        # A thread gets consecutive tasks. Numbered head by head, each thread has a share of every sequence.
        head, seq = task // num_seqs, task % num_seqs
        query = np.empty((group, head_dim), np.float32)
        acc = np.empty((group, head_dim), np.float32)
        top = np.empty(group, np.float32)  # the largest score so far
        total = np.ones(group, np.float32)
        weights = np.empty((group, block_size), np.float32)

        # The new token is the softmax's first element: its weight is exp(0).
        for g in range(group):
            score = np.float32(0)
            for d in range(head_dim):
                query[g, d] = q[seq, head * group + g, d] * scale
                score += query[g, d] * k[seq, head, d]
                acc[g, d] = v[seq, head, d]
            top[g] = score

        num_cached = context_lens[seq]
        for start in range(0, num_cached, block_size):
            block = block_table[seq, start // block_size]
            cached = min(block_size, num_cached - start)  # slots after the last token are not read
            for slot in range(cached):
                key = k_cache[block, slot, head]  # a view, no copy
                for g in range(group):
                    score = np.float32(0)
                    for d in range(head_dim):
                        score += query[g, d] * as_float(key[d])
                    weights[g, slot] = score
            for g in range(group):
                new_top = top[g]
                for slot in range(cached):
                    new_top = max(new_top, weights[g, slot])
                shrink = math.exp(top[g] - new_top)  # rescales the sums, which are relative to the old top
                top[g] = new_top
                total[g] *= shrink
                for d in range(head_dim):
                    acc[g, d] *= shrink
                for slot in range(cached):
                    weights[g, slot] = math.exp(weights[g, slot] - new_top)
                    total[g] += weights[g, slot]
            for slot in range(cached):
                value = v_cache[block, slot, head]
                for g in range(group):
                    for d in range(head_dim):
                        acc[g, d] += weights[g, slot] * as_float(value[d])

        for g in range(group):
            for d in range(head_dim):
                out[seq, head * group + g, d] = acc[g, d] / total[g]


@cache
def compiled(dtype: torch.dtype) -> Callable[..., None]:
    """paged_decode_loop compiled for a pool of that dtype. Takes seconds; later processes read it from Numba's cache.

    The types are given, so that one compilation does for cuts of any tensor ("A": any strides).
    """
    new, table = types.Array(types.float32, 3, "A"), types.Array(types.int32, 2, "A")
    pool = types.Array(numba.typeof(torch.empty(0, dtype=BITS[dtype]).numpy()).dtype, 4, "C")
    signature = types.void(new, new, new, new, pool, pool, table, types.Array(types.int32, 1, "C"), types.float32)
    options = {"parallel": True, "fastmath": SUMS}
    threads = torch.get_num_threads()
    numba.get_num_threads()  # Numba starts its threads; if these are OpenMP's, it sets PyTorch's number, too
    torch.set_num_threads(threads)
    try:
        return njit([signature], cache=True, **options)(paged_decode_loop)
    except (RuntimeError, OSError):  # no writable cache folder: every process compiles again
        return njit([signature], **options)(paged_decode_loop)


def paged_attention_numba(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor
) -> Tensor:
    """As paged_attention_reference, on a CPU, in one call and with as many threads as PyTorch uses.

    Raises ValueError for tensors on another device, a pool that is not contiguous or not float32, bfloat16 or float16.
    """
    check_readable(k_cache, v_cache)
    loop = compiled(k_cache.dtype)
    out = torch.empty(q.shape)
    with span(SPAN), one_caller:
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        loop(
            *(x.float().numpy() for x in (out, q, k, v)),
            *(pool.view(BITS[pool.dtype]).numpy() for pool in (k_cache, v_cache)),
            block_table.numpy(), context_lens.numpy(), np.float32(q.size(-1) ** -0.5),
        )  # fmt: skip
    return out.to(q.dtype)


def check_readable(k_cache: Tensor, v_cache: Tensor) -> None:
    if reason := NumbaPaged.why_untimed(k_cache.device):
        raise ValueError(reason)
    if k_cache.dtype not in BITS:
        raise ValueError(f"dtype must be float32, bfloat16 or float16 for these loops, got {k_cache.dtype}")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError(
            f"k_cache and v_cache must be contiguous, got strides {k_cache.stride()} and {v_cache.stride()}"
        )


class NumbaPaged(BlockTableCache):
    """BlockTableCache with its attention in compiled loops. Raises ValueError for a model that is not on a CPU."""

    name = "s09_numba_paged"
    attention = staticmethod(paged_attention_numba)

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        check_readable(self.k_cache, self.v_cache)
        compiled(model.dtype)  # here rather than in the first step

    @classmethod
    def why_untimed(cls, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"its loops are compiled for a CPU, the tensors are on {device.type}: s07_triton_paged runs there"
        return None
