"""count_loads: how often a kernel's programs load each element of a tensor; and a guard for kernels under test.

Triton's interpreter makes every load through one function, with the addresses and the mask in hand. Both are read
there. A compiled kernel tells nothing of the kind, so where kernels are compiled a child process interprets.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roseinfer.kernels import triton_mode

if TYPE_CHECKING:
    from roseinfer.kernels.cases import PagedCase

NAN = {"fp32": np.float32("nan"), "fp16": np.float16("nan"), "bf16": np.uint16(0x7FC0)}  # as the interpreter keeps them


class Touch(NamedTuple):
    """One load or store of a program: the address of each lane, and which lanes the mask lets through.

    is_open: whether it is a load with masked lanes and without `other`.
    """

    kind: str
    addresses: np.ndarray
    mask: np.ndarray
    is_open: bool = False

    @property
    def reached(self) -> np.ndarray:
        """The addresses that the mask lets through, in one dimension."""
        return self.addresses[self.mask]


Access = Callable[[Touch], None]


def count_loads(attention: Callable[..., Tensor], case: PagedCase) -> tuple[Tensor, Tensor]:
    """Count how often the programs of attention(*case) load each value of k_cache and v_cache: two tensors of counts.

    Where kernels are compiled, attention must be importable: a function of a notebook raises ValueError there.
    """
    triton_mode.require_triton()
    arguments = tuple(tensor.cpu() for tensor in case)
    if triton_mode.MODE == "interpret":
        return _count(attention, arguments)
    if attention.__module__ == "__main__":
        raise ValueError(f"attention must come from a module to be counted beside a GPU, got {attention.__qualname__}")
    request = pickle.dumps((attention.__module__, attention.__qualname__, arguments))
    environment = os.environ | {triton_mode.VARIABLE: "interpret"}
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=request, stdout=subprocess.PIPE, env=environment, check=True
    )
    return pickle.loads(done.stdout)


def _count(attention: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    caches = tuple(cache.contiguous() for cache in arguments[3:5])
    k_counts, v_counts = (torch.zeros(cache.shape, dtype=torch.int64) for cache in caches)

    def note(touch: Touch) -> None:
        for cache, count in zip(caches, (k_counts, v_counts), strict=True):
            element = (touch.reached.astype(np.int64) - cache.data_ptr()) // cache.element_size()
            inside = element[(element >= 0) & (element < cache.numel())]
            count.view(-1).add_(torch.from_numpy(np.bincount(inside, minlength=cache.numel())))

    with watched(note):
        attention(*arguments[:3], *caches, *arguments[5:])
    return k_counts, v_counts


@contextmanager
def watched(access: Access) -> Iterator[None]:
    """Call `access` before every load and store that Triton's interpreter makes.

    A load with a mask and without `other` gives NaN where it is masked: on a GPU it may give anything.
    """
    from triton.runtime.interpreter import TritonSemantic  # each function has an object of its own in Triton 3.6
    from triton.runtime.interpreter import interpreter_builder as builder

    tl_load, load, store = TritonSemantic.load, builder.create_masked_load, builder.create_masked_store
    has_other = False  # of the tl.load that runs: it drops an `other` of one element that is 0

    def noted_load(semantic: Any, ptr: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        nonlocal has_other
        has_other = other is not None
        return tl_load(semantic, ptr, mask, other, *rest, **named)

    def watched_load(ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        let_through = _let_through(mask)
        is_open = other is None and not has_other and not let_through.all()
        access(Touch("load", ptrs.data, let_through, is_open))
        if is_open:
            other = _nan_like(ptrs)
        return load(ptrs, mask, other, *rest, **named)

    def watched_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        access(Touch("store", ptrs.data, _let_through(mask)))
        return store(ptrs, value, mask, *rest, **named)

    TritonSemantic.load = noted_load
    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield
    finally:
        TritonSemantic.load = tl_load
        del builder.create_masked_load, builder.create_masked_store  # the class's own are found again


def _let_through(mask: Any) -> np.ndarray:
    """Return the booleans of a mask, which `&` with a scalar turns to integers. A block pointer's is an array."""
    return (mask if isinstance(mask, np.ndarray) else mask.data).astype(bool)


def _nan_like(ptrs: Any) -> Any:
    """Make NaN of the type that is loaded; None for integers."""
    from triton.runtime.interpreter import TensorHandle

    dtype = ptrs.get_element_ty()
    nan = NAN.get(dtype.name)
    return None if nan is None else TensorHandle(np.full(ptrs.data.shape, nan), dtype)


class OutOfBounds(Exception):
    """A program touched memory that belongs to none of its tensors; the message says which and how far off."""


class GuardedKernel:
    """Kernel whose interpreted programs may touch only the tensors that they were given; else OutOfBounds is raised.

    That is before the interpreter would read or overwrite this process's own memory. What the kernel raises comes out
    as it is. A compiled kernel runs unguarded.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            tensors = {i: arg for i, arg in enumerate(args) if isinstance(arg, Tensor)}
            if triton_mode.MODE != "interpret" or any(tensor.device.type != "cpu" for tensor in tensors.values()):
                return self.kernel[grid](*args, **kwargs)
            names = list(plain_function(self.kernel).__code__.co_varnames)
            try:
                with watched(_guard({names[i]: tensor for i, tensor in tensors.items()})):
                    self.kernel[grid](*args, **kwargs)
            except Exception as error:
                raise innermost(error) from None

        return launch


def innermost(error: Exception) -> Exception:
    """Unwrap what a kernel raised from the interpreter's errors; its traceback has the kernel's line."""
    while type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def _guard(tensors: dict[str, Tensor]) -> Access:
    storages = [(name, tensor, tensor.untyped_storage()) for name, tensor in tensors.items()]
    ranges = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for _, _, storage in storages]

    def check(touch: Touch) -> None:
        at = touch.reached.astype(np.int64)
        allowed = np.zeros(at.shape, dtype=bool)
        for first, end in ranges:
            allowed |= (at >= first) & (at < end)
        if not allowed.all():
            raise OutOfBounds(_describe(touch.kind, int(at[~allowed][0]), tensors))

    return check


def _describe(kind: str, address: int, tensors: dict[str, Tensor]) -> str:
    def distance(tensor: Tensor) -> int:
        first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        return first - address if address < first else address - end

    name = min(tensors, key=lambda name: distance(tensors[name]))
    tensor = tensors[name]
    element = (address - tensor.data_ptr()) // tensor.element_size()
    where = f"nearest is {name}, {tensor.numel()} elements, at element {element}"
    return f"a {kind} goes outside of every tensor; {where}. Is a mask missing, or an address wrong?"


def plain_function(kernel: Any) -> Any:
    """Return the Python function inside a kernel of Triton or Numba; any other function is returned as it is."""
    while isinstance(kernel, (triton_mode.InterpretedKernel, GuardedKernel)):
        kernel = kernel.kernel
    return getattr(kernel, "fn", getattr(kernel, "py_func", kernel))


def main() -> None:
    """Serve count_loads in a child process: read a pickled request from stdin, write the pickled counts to stdout."""
    module, name, arguments = pickle.load(sys.stdin.buffer)
    counts = _count(getattr(importlib.import_module(module), name), arguments)
    sys.stdout.buffer.write(pickle.dumps(counts))


if __name__ == "__main__":
    main()
