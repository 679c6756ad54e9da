"""cached_bytes, read_rates and head_major: how fast an attention reads K and V, in two layouts of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from roseinfer.kernels.cases import PagedCase

from ..measure.median_times import median_ms


def cached_bytes(case: PagedCase) -> int:
    """Return the bytes of all cached K and V of one layer, which its attention must read."""
    heads, dim = case.k_cache.shape[2:]
    return 2 * int(case.context_lens.sum()) * heads * dim * case.k_cache.element_size()


def read_rates(attention: Callable[..., Tensor], cases: Mapping[str, PagedCase], repeats: int = 9) -> dict[str, float]:
    """Measure how many GB of K and V per second an attention reads on each case: the median of calls made in turn."""
    ms = median_ms({name: partial(attention, *case) for name, case in cases.items()}, repeats)
    return {name: cached_bytes(case) / ms[name] / 1e6 for name, case in cases.items()}


def head_major(case: PagedCase) -> PagedCase:
    """Lay out a batch head-major, with a sequence for each (sequence, KV head).

    A head-major pool of H heads is a token-major pool of H times as many blocks with one head each.
    """
    blocks, size, heads, dim = case.k_cache.shape
    q, k, v = (x.reshape(-1, x.size(1) // heads, dim) for x in (case.q, case.k, case.v))
    keys, values = (x.transpose(1, 2).reshape(blocks * heads, size, 1, dim) for x in (case.k_cache, case.v_cache))
    table = case.block_table[:, None] * heads + torch.arange(heads, dtype=torch.int32)[:, None]
    return PagedCase(q, k, v, keys, values, table.flatten(0, 1), case.context_lens.repeat_interleave(heads))
