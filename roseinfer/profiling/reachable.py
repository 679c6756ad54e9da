"""tensors_of: every tensor that an object holds on to, however it keeps it."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor


def tensors_of(*roots: Any, without: tuple[type, ...] = ()) -> list[Tensor]:
    """Tensors that can be reached from the roots: in attributes, containers, partials, and what a function has closed
    over. Not through modules, classes and a function's globals, which lead everywhere, nor through objects of the types
    `without`. Each once."""
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, ModuleType, *without)):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            found.append(thing)
        elif isinstance(thing, FunctionType):
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        else:
            waiting += gc.get_referents(thing)
    return found
