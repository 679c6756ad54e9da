"""Exact facts of one step: which aten ops it starts, and how many bytes it moves or fills.

Both functions run the step once, for real: a decode step does append its tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roseinfer.kernels.triton_mode import INTERPRETER

from .traces.capture import record
from .traces.chrome import Slice
from .traces.trace import Trace

aten = torch.ops.aten


# Ops of a model, not of a stage. What they start inside depends on the device: a CPU copies a linear layer's bias
# before the product, looks embeddings up with selects and casts before a norm, a GPU does not. Nor is Triton's
# interpreter a stage's.
MODEL_OPS = ("aten::embedding", "aten::linear", "aten::rms_norm", "aten::scaled_dot_product_attention", INTERPRETER)
TRANSFERS = "transfers"  # what stage_ops calls copies between devices


def trace_once(run_step: Callable[[], object]) -> Trace:
    """Trace one call of `run_step`, not warmed up: for counting, not for times."""
    return Trace(record(run_step, calls=1))


def count_ops(run_step: Callable[[], object], span: str | None = None) -> Counter[str]:
    """Count how often one call of `run_step` starts each aten op, as the profiler sees it.

    That includes the ops that other ops call (aten::zeros starts aten::empty and aten::zero_). With `span`, only those
    inside the first span of that name; ValueError if the step has none. Errors in `run_step` propagate.
    """
    return trace_once(run_step).op_counts(span)


def stage_ops(trace: Trace, span: str | None = None) -> Counter[str]:
    """Count the aten ops that a stage starts, alike on every device.

    An op with a kernel of its own is one op, and so are MODEL_OPS: what they start inside differs from device to device
    (on a GPU, index_put_ copies its indices; on a CPU, a comparison of int32 with int64 copies one side). What is made
    of other ops everywhere, such as reshape or einsum, counts with these.

    Args:
        trace: of the step, from trace_once.
        span: count inside the first span of that name alone; ValueError if there is none. None: the whole trace.

    A tensor made on one device from one on another is counted under TRANSFERS, not as a copy: a CPU has none.
    """

    def is_whole(event: Slice) -> bool:
        return event.name in MODEL_OPS or event.name in _with_own_kernel() or trace.is_transfer(event)

    ops = trace.ops_outside(is_whole, span)
    return Counter(TRANSFERS if trace.is_transfer(op) else op.name for op in ops)


@cache
def _with_own_kernel() -> frozenset[str]:
    """Return the ops that have a kernel for the CPU; a GPU has another one."""
    kernels = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")  # aten::index.Tensor
    return frozenset(kernel.partition(".")[0] for kernel in kernels)


@dataclass(frozen=True)
class CopiedBytes:
    """Bytes written by moving data that already exists, and by filling with a constant."""

    copied: int
    filled: int


def bytes_copied(run_step: Callable[[], object]) -> CopiedBytes:
    """Count the bytes that one call of `run_step` writes to move or to fill tensors, on any device.

    copied: the destination of copy_ and index_copy_; the output of cat, stack, clone, repeat, index, index_select,
    gather and _to_copy (.to); the elements written by index_put_ (`x[i] = v`). What decomposes into these counts
    through them: contiguous and reshape where they must copy, slice assignment, hstack. filled: the output of zeros,
    ones, full and their _like and new_ forms; the target of zero_ and fill_. F.pad with a constant fills its whole
    output and then copies its input into it.

    Not counted, so that all devices have the same bytes: a tensor made on one device from one on another (.to, .cpu,
    .tolist), which a CPU does without, and under inference_mode what MODEL_OPS do inside (on a GPU, fused attention
    first pads its mask). Nor are arithmetic, softmax and matrix products (they write results, not copies), views,
    torch.tensor(...), and what runs below PyTorch's dispatcher (Triton). Works under torch.inference_mode and
    torch.no_grad, inside or around `run_step`. Errors in `run_step` propagate.
    """
    counter = _ByteCounter()
    with counter:
        run_step()
    return CopiedBytes(copied=counter.copied, filled=counter.filled)


class _ByteCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.copied = 0
        self.filled = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = func.overloadpacket
        if op not in COPIES and op not in FILLS and op not in WHOLE:
            # inference_mode skips the autograd layer, where composite ops (reshape, contiguous, ...) are taken
            # apart otherwise, so here they arrive whole and must be taken apart to see the copies in them.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if op in COPIES:
            self.copied += COPIES[op](result, *args)
        if op in FILLS:
            self.filled += _nbytes(result)
        return result


def _nbytes(result: Tensor, *args: Any) -> int:
    return result.numel() * result.element_size()


def _input_nbytes(result: Tensor, source: Tensor, *args: Any) -> int:
    return _nbytes(source)


def _to_copy_nbytes(result: Tensor, source: Tensor) -> int:
    return _nbytes(result) if result.device == source.device else 0


def _index_copy_nbytes(result: Tensor, target: Tensor, dim: int, index: Tensor, source: Tensor) -> int:
    return _nbytes(source)


def _index_put_nbytes(result: Tensor, target: Tensor, indices: list[Tensor | None], *args: Any) -> int:
    """Count the bytes of the elements that the indices name, times each dimension left whole (None, or after them)."""
    shapes, whole, dim = [], 1, 0
    for index in indices:
        if index is None:
            whole *= target.size(dim)
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            shapes.append(torch.Size([int(index.count_nonzero())]))
            dim += index.dim()
        else:
            shapes.append(index.shape)
            dim += 1
    whole *= prod(target.shape[dim:])
    return prod(torch.broadcast_shapes(*shapes)) * whole * target.element_size()


COPIES: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(
        (
            aten.copy_,
            aten.cat,
            aten.stack,
            aten.clone,
            aten.repeat,
            aten.index,
            aten.index_select,
            aten.gather,
        ),
        _nbytes,
    ),
    aten._to_copy: _to_copy_nbytes,
    aten.index_put_: _index_put_nbytes,
    aten.index_copy_: _index_copy_nbytes,
    aten.constant_pad_nd: _input_nbytes,
}

FILLS = {
    aten.zero_,
    aten.fill_,
    aten.constant_pad_nd,
    aten.zeros,
    aten.zeros_like,
    aten.new_zeros,
    aten.ones,
    aten.ones_like,
    aten.new_ones,
    aten.full,
    aten.full_like,
    aten.new_full,
}

WHOLE = {getattr(aten, name.removeprefix("aten::")) for name in MODEL_OPS if name.startswith("aten::")}
