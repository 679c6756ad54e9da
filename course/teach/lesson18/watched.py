"""watch: run a function with parallel loops as plain Python, and note which task reads and writes which element."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from unittest.mock import patch

import numba
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

COPIES = ("array", "asarray", "ascontiguousarray", "copy")
SHARED = ("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like")


@dataclass
class Log:
    """What the tasks of each parallel loop touched.

    order: draws the order of tasks, None for their own. tasks: how many each loop has. task: the one that runs, None
    outside of all loops. reads, writes: by array, loop and element, the tasks that did so. num_reads: of elements, by
    array, also outside of loops. read_outside, written_outside: arrays that were read or written outside of loops.
    """

    order: random.Random | None
    tasks: list[int] = field(default_factory=list)
    task: int | None = None
    reads: dict[tuple[str, int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    writes: dict[tuple[str, int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    num_reads: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    read_outside: set[str] = field(default_factory=set)
    written_outside: set[str] = field(default_factory=set)

    def loop(self, *bounds: int) -> Iterator[int]:
        """Stand in for prange: yield the tasks in a drawn order, or in their own. Raises ValueError for other steps."""
        if bounds[2:] not in ((), (1,)):
            raise ValueError(f"prange counts in steps of 1 alone, got {bounds[2]}")
        tasks = list(range(*bounds))
        if self.task is not None:  # Numba runs an inner loop in turn
            yield from tasks
            return
        if self.order:
            self.order.shuffle(tasks)
        self.tasks.append(len(tasks))
        try:
            for self.task in tasks:  # noqa: B020, the task that runs now
                yield self.task
        finally:
            self.task = None

    def read(self, name: str, elements: np.ndarray) -> None:
        self.num_reads[name] += elements.size
        if self.task is None:
            self.read_outside.add(name)
        self._note(self.reads, name, elements)

    def write(self, name: str, elements: np.ndarray) -> None:
        if self.task is None:
            self.written_outside.add(name)
        self._note(self.writes, name, elements)

    def _note(self, where: dict[tuple[str, int, int], set[int]], name: str, elements: np.ndarray) -> None:
        if self.task is not None:
            for element in elements.ravel().tolist():
                where[name, len(self.tasks) - 1, element].add(self.task)

    def most_read_by_a_task(self, name: str) -> int:
        """Count the elements of an array that the task with the most of them reads."""
        by_task = Counter(
            (loop, task) for (array, loop, _), tasks in self.reads.items() for task in tasks if array == name
        )
        return max(by_task.values(), default=0)


class Watched(NDArrayOperatorsMixin):
    """An array, or a view of one, that notes which of its elements are read or written.

    elements: their places in the array, in the shape of the view.
    """

    def __init__(self, log: Log, name: str, values: np.ndarray, elements: np.ndarray | None = None) -> None:
        self._log, self._name, self._values = log, name, values
        self._elements = np.arange(values.size).reshape(values.shape) if elements is None else elements

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # NumPy asks for protocols that this has not
            raise AttributeError(name)
        if name in ("shape", "size", "ndim", "dtype"):
            return getattr(self._values, name)
        if name in ("reshape", "ravel", "transpose", "T"):
            return self._view(name)
        if name in ("copy", "astype"):
            return lambda *args, **kwargs: self._copied(getattr(self._values, name)(*args, **kwargs))
        return getattr(np.asarray(self), name)  # max, sum and the like read everything

    def _view(self, name: str) -> Any:
        values, elements = getattr(self._values, name), getattr(self._elements, name)
        if not callable(values):
            return type(self)(self._log, self._name, values, elements)
        return lambda *shape: type(self)(self._log, self._name, values(*shape), elements(*shape))

    def _copied(self, values: np.ndarray) -> Copied:
        return Copied(self._log, self._name, values, self._elements)

    def _write(self, elements: np.ndarray) -> None:
        self._log.write(self._name, elements)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self._log.read(self._name, self._elements)
        return np.array(self._values, dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        values, elements = self._values[_plain(index)], self._elements[_plain(index)]
        if np.ndim(elements):
            return type(self)(self._log, self._name, values, elements)
        self._log.read(self._name, np.asarray(elements))
        return values

    def __setitem__(self, index: Any, value: Any) -> None:
        value = _plain(value)
        self._write(np.asarray(self._elements[_plain(index)]))
        self._values[_plain(index)] = value

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        result = getattr(ufunc, method)(*map(_plain, args), **kwargs)
        if out is None:
            return result
        [into] = out
        into[...] = result
        return into

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ in SHARED:
            return function(self._values, *args[1:], **kwargs)
        return function(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})


class Copied(Watched):
    """A copy of a watched array: to read it is to load these values once more, and to write it changes no other."""

    def _write(self, elements: np.ndarray) -> None:
        if self._log.task is None:
            self._log.write(f"a copy of {self._name}", elements)


def _plain(value: Any) -> Any:
    """Read the numbers of a watched array, or of several in a tuple, as an index has them."""
    if isinstance(value, Watched):
        return np.asarray(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value


class _Shared:
    """NumPy, but new arrays that all tasks share, because they are made outside of every task, are watched."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        made = getattr(np, name)
        if name in COPIES:
            return lambda given, *args, **kwargs: (
                given.copy() if isinstance(given, Watched) else made(given, *args, **kwargs)
            )
        if name not in SHARED:
            return made

        def make(*args: Any, **kwargs: Any) -> Any:
            array = made(*args, **kwargs)
            return array if self._log.task is not None else Watched(self._log, f"its own array {array.shape}", array)

        return make


def watch(function: Callable[..., Any], arrays: dict[str, Any], order: random.Random | None = None) -> tuple[Any, Log]:
    """Call a function, compiled or not, as plain Python with these arguments by name; return its result and a Log.

    order: draws the order of the tasks of each parallel loop; None for their own order. Arrays that a task makes are
    its own, and not watched. Those that are made outside of tasks are watched.
    """
    log = Log(order)
    plain = getattr(function, "py_func", function)
    assert isinstance(plain, FunctionType), "a function of Python's"
    handed = {n: Watched(log, n, a) if isinstance(a, np.ndarray) and a.ndim else a for n, a in arrays.items()}
    names = dict(plain.__globals__)
    for name, value in plain.__globals__.items():
        if value is np:
            names[name] = _Shared(log)
        elif getattr(getattr(value, "py_func", None), "__globals__", None) is plain.__globals__:
            names[name] = _with_names(value.py_func, names)  # a compiled helper from another cell
    with patch.object(numba.prange, "__new__", lambda _, *bounds: log.loop(*bounds)):
        return _with_names(plain, names)(*handed.values()), log


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
