"""tensors_of and arrays_of: every tensor and NumPy array that an object holds on to, however it keeps it."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

Thing = TypeVar("Thing")


def tensors_of(*roots: Any, without: tuple[type, ...] = ()) -> list[Tensor]:
    """List, once each, the tensors that the roots reach: by attributes, containers, partials and closures.

    The search does not go through modules, classes and a function's globals, which lead everywhere, nor through objects
    of the types `without`.
    """
    return _things_of(Tensor, roots, without)


def arrays_of(*roots: Any) -> list[np.ndarray]:
    """List, once each, the NumPy arrays that the roots reach in the same ways as tensors_of's tensors."""
    return _things_of(np.ndarray, roots)


def _things_of(kind: type[Thing], roots: tuple[Any, ...], without: tuple[type, ...] = ()) -> list[Thing]:
    found: list[Thing] = []
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, ModuleType, *without)):
            continue
        seen.add(id(thing))
        if isinstance(thing, kind):
            found.append(thing)
        elif isinstance(thing, FunctionType):
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        else:
            waiting += gc.get_referents(thing)
            if isinstance(thing, dict):  # since Python 3.13 an object's __dict__ leaves its values to the object
                waiting += dict.values(thing)
    return found
