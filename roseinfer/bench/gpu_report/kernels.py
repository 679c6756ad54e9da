"""The paged attention kernel on this device: checked against the reference, and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from roseinfer.profiling import measure_machine

from .context import Context, one_line
from .plan import KernelShape, TimedShape

# Kernel and reference read the same inputs and sum in fp32: what may differ is the order of the sums, and the last
# rounding to the output's type, which is at most half its eps.
ATOL = 2e-5


def ragged(block_size: int) -> list[int]:
    """Nothing cached, one token, both sides of a block's edge, full blocks, and a few blocks with a tail."""
    return [0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size, 3 * block_size + 5]


def kernel_checks(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each (shape, dtype)."""
    until = perf_counter() + context.plan.kernel_check_seconds
    for done, shape in enumerate(context.plan.kernel_shapes):
        if perf_counter() > until:
            left = len(context.plan.kernel_shapes) - done
            context.note(f"kernel checks: {left} of {len(context.plan.kernel_shapes)} shapes not run, out of time")
            return
        for dtype in context.plan.dtypes:
            row = asdict(shape) | {"dtype": dtype} | check(context, shape, getattr(torch, dtype))
            if row["verdict"] != "ok":
                context.fail(f"kernel check {dtype}, {shape}: {row['verdict']}")
            yield row


def check(context: Context, shape: KernelShape, dtype: torch.dtype) -> dict[str, Any]:
    """max_error, the allowed error atol + rtol * |expected|, and the verdict: "ok", "wrong: ..." or "failed: ..."."""
    rtol = torch.finfo(dtype).eps
    row = {"max_error": None, "atol": ATOL, "rtol": rtol}
    inputs = paged_inputs(shape, ragged(shape.block_size), dtype, context.device)
    in_fp32 = {name: x.float() if x.is_floating_point() else x for name, x in inputs.items()}
    try:
        got = context.course.kernel(**inputs)
        expected = context.course.reference(**in_fp32)
        error = (got.float() - expected).abs()
    except Exception as failure:  # it is the row's verdict, and the report fails
        return row | {"verdict": f"failed: {one_line(failure)}"}
    if not error.isfinite().all():
        return row | {"verdict": "wrong: not finite"}
    row["max_error"] = float(error.max())
    wrong = int((error > ATOL + rtol * expected.abs()).sum())
    return row | {"verdict": "ok" if not wrong else f"wrong: {wrong} of {error.numel()} values are too far off"}


def paged_inputs(shape: KernelShape, lengths: list[int], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Arguments of an attention, the same on every device: shuffled blocks, and NaN in every slot without a token.

    Table entries behind a sequence's blocks name a block of NaN.
    """
    num_kv_heads, group, head_dim, block_size = shape.num_kv_heads, shape.group, shape.head_dim, shape.block_size
    generator = torch.Generator().manual_seed(0)
    num_blocks = sum(ceil(length / block_size) for length in lengths) + 1
    *blocks, unwritten = torch.randperm(num_blocks, generator=generator).tolist()
    table = torch.full((len(lengths), ceil(max(lengths) / block_size) + 1), unwritten, dtype=torch.int32)
    cache = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), float("nan"))
    for row, length in enumerate(lengths):
        for column, start in enumerate(range(0, length, block_size)):
            block, filled = blocks.pop(), min(block_size, length - start)
            table[row, column] = block
            cache[:, block, :filled].normal_(generator=generator)
    qkv = torch.randn(len(lengths), (group + 2) * num_kv_heads, head_dim, generator=generator)
    # As a model makes them: q, k and v are cuts of one tensor.
    q, k, v = qkv.to(device, dtype).split([group * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    k_cache, v_cache = cache.to(device, dtype)
    return {
        "q": q, "k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "block_table": table.to(device),
        "context_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
    }  # fmt: skip


def kernel_times(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each timed shape; bytes_per_s and bandwidth_share count the cached K and V alone."""
    for shape in context.plan.timed_shapes:
        dtype = getattr(torch, shape.dtype)
        bandwidth = measure_machine(context.device, dtype).read_bytes_per_s
        inputs = large_inputs(shape, dtype, context.device)
        nbytes = 2 * shape.batch_size * shape.context_len * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        samples = launch_seconds(lambda inputs=inputs: context.course.kernel(**inputs), context.device)
        seconds = median(samples)
        yield asdict(shape) | {
            "kv_bytes": nbytes, "seconds": seconds, "fastest_seconds": min(samples), "launches": len(samples),
            "bytes_per_s": nbytes / seconds, "bandwidth_share": nbytes / seconds / bandwidth,
        }  # fmt: skip


def large_inputs(shape: TimedShape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Equally long sequences in shuffled blocks, made on the device."""
    columns = ceil(shape.context_len / shape.block_size)
    num_blocks = shape.batch_size * columns
    pool = (2, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    cache = torch.randn(pool, dtype=dtype, device=device)
    query = (shape.batch_size, shape.group * shape.num_kv_heads, shape.head_dim)
    new = torch.randn((2, shape.batch_size, shape.num_kv_heads, shape.head_dim), dtype=dtype, device=device)
    table = torch.randperm(num_blocks, device=device).view(shape.batch_size, columns)
    return {
        "q": torch.randn(query, dtype=dtype, device=device), "k": new[0], "v": new[1],
        "k_cache": cache[0], "v_cache": cache[1], "block_table": table.to(torch.int32),
        "context_lens": torch.full((shape.batch_size,), shape.context_len, dtype=torch.int32, device=device),
    }  # fmt: skip


def launch_seconds(launch: Callable[[], object], device: torch.device) -> list[float]:
    """Each launch's seconds: on a GPU between two CUDA events, with its L2 cache cleared before."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return [ms / 1e3 for ms in do_bench(launch, return_mode="all")]
    samples = []
    for _ in range(3):
        start = perf_counter()
        launch()
        samples.append(perf_counter() - start)
    return samples
