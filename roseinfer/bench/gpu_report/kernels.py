"""The attention kernels on this device: checked against their references, and stage 07's timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import torch

from roseinfer.kernels.cases import PagedCase, paged_case
from roseinfer.kernels.flat_cases import ATOL, CASES, Judgement, flat_case, judge
from roseinfer.kernels.paged_reference import paged_attention_reference
from roseinfer.profiling import measure_machine
from roseinfer.profiling.clock import seconds_of

from .context import Context, one_line
from .plan import KernelShape, TimedShape


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
    """max_error, the allowed error atol + rtol * |expected|, and the verdict: "ok", "wrong: ..." or "failed: ...".

    Kernel and reference read the same inputs and sum in fp32: what may differ is the order of the sums, and the last
    rounding to the output's type, which is at most half its eps.
    """
    rtol = torch.finfo(dtype).eps
    row = {"max_error": None, "atol": ATOL, "rtol": rtol}
    case = paged_case(ragged(shape.block_size), **asdict(shape), dtype=dtype, device=context.device)
    in_fp32 = PagedCase(*(x.float() if x.is_floating_point() else x for x in case))
    try:
        got = context.course.kernel(*case)
        expected = context.course.reference(*in_fp32)
        error = (got.float() - expected).abs()
    except Exception as failure:  # it is the row's verdict, and the report fails
        return row | {"verdict": f"failed: {one_line(failure)}"}
    if not error.isfinite().all():
        return row | {"verdict": "wrong: not finite"}
    row["max_error"] = float(error.max())
    wrong = int((error > ATOL + rtol * expected.abs()).sum())
    return row | {"verdict": "ok" if not wrong else f"wrong: {wrong} of {error.numel()} values are too far off"}


def flat_checks(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each (case, dtype) of attention over flat batches: K and V written, and the result."""
    plan, until = context.plan, perf_counter() + context.plan.flat_check_seconds
    for done, name in enumerate(plan.flat_cases):
        if perf_counter() > until:
            left = len(plan.flat_cases) - done
            context.note(f"flat checks: {left} of {len(plan.flat_cases)} cases not run, out of time")
            return
        for dtype in plan.dtypes:
            case = flat_case(**CASES[name], dtype=getattr(torch, dtype), device=context.device)
            try:
                found = judge(context.course.flat_kernel, paged_attention_reference, case)
            except Exception as failure:  # it is the row's verdict, and the report fails
                found = Judgement(f"failed: {one_line(failure)}")
            if found.verdict != "ok":
                context.fail(f"flat check {dtype}, {name}: {found.verdict}")
            yield {"case": name, "dtype": dtype, **found._asdict()}


def kernel_times(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each timed shape; bytes_per_s and bandwidth_share count the cached K and V alone."""
    for shape in context.plan.timed_shapes:
        dtype = getattr(torch, shape.dtype)
        bandwidth = measure_machine(context.device, dtype).read_bytes_per_s
        inputs = large_inputs(shape, dtype, context.device)
        nbytes = 2 * shape.batch_size * shape.context_len * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        samples = launch_seconds(lambda inputs=inputs: context.course.kernel(*inputs), context.device)
        seconds = median(samples)
        yield asdict(shape) | {
            "kv_bytes": nbytes, "seconds": seconds, "fastest_seconds": min(samples), "launches": len(samples),
            "bytes_per_s": nbytes / seconds, "bandwidth_share": nbytes / seconds / bandwidth,
        }  # fmt: skip


def large_inputs(shape: TimedShape, dtype: torch.dtype, device: torch.device) -> PagedCase:
    """Equally long sequences in shuffled blocks, made on the device."""
    columns = ceil(shape.context_len / shape.block_size)
    num_blocks = shape.batch_size * columns
    pool = (2, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    cache = torch.randn(pool, dtype=dtype, device=device)
    query = (shape.batch_size, shape.group * shape.num_kv_heads, shape.head_dim)
    new = torch.randn((2, shape.batch_size, shape.num_kv_heads, shape.head_dim), dtype=dtype, device=device)
    table = torch.randperm(num_blocks, device=device).view(shape.batch_size, columns)
    lens = torch.full((shape.batch_size,), shape.context_len, dtype=torch.int32, device=device)
    q = torch.randn(query, dtype=dtype, device=device)
    return PagedCase(q, new[0], new[1], cache[0], cache[1], table.to(torch.int32), lens)


def launch_seconds(launch: Callable[[], object], device: torch.device) -> list[float]:
    """Each launch's seconds: on a GPU between two CUDA events, with its L2 cache cleared before."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return [ms / 1e3 for ms in do_bench(launch, return_mode="all")]
    return [seconds_of(launch) for _ in range(3)]
