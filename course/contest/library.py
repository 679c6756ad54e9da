"""Library: marks its functions, classes and constants before an entry runs, and finds which of them it changed.

An entry is one class. A policy that changes the engine as well would stand on the scoreboard as a policy.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType

PACKAGES = ("course", "roseinfer", "stages")
CONTAINERS = (list, set, frozenset, tuple)


def marks_of_library() -> dict[str, object]:
    """Mark every name of the imported modules, by its full name. A mark changes when the name's value does."""
    marks: dict[str, object] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] in PACKAGES:
            for name, value in list(vars(module).items()):
                if isinstance(value, FunctionType | type) or name.isupper():
                    marks[f"{module.__name__}.{name}"] = mark_of(value)
                if isinstance(value, type) and value.__module__ == module.__name__:
                    marks |= {f"{module.__name__}.{name}.{own}": mark_of(one) for own, one in vars(value).items()}
    return marks


def mark_of(value: object) -> object:
    """Identify a value by itself, by a function's code and defaults, and by what a container holds."""
    if isinstance(value, FunctionType):
        return id(value), id(value.__code__), id(value.__defaults__), id(value.__kwdefaults__)
    if isinstance(value, dict):
        return id(value), tuple((id(key), id(own)) for key, own in value.items())
    return (id(value), tuple(map(id, value))) if isinstance(value, CONTAINERS) else id(value)


def changed_since(before: dict[str, object]) -> str | None:
    """Find the first name whose value has changed or is gone; None if all are as they were."""
    now = marks_of_library()
    return next((name for name, mark in before.items() if now.get(name) != mark), None)
