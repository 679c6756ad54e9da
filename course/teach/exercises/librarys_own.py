"""Check whether an answer is the library's own: handed in as it is, compiled, or inherited unchanged."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from ..source import members

LIBRARY = ("course", "roseinfer", "stages")
# What every class has, or what says nothing of what it does.
GIVEN = {
    *vars(type("Empty", (), {})),
    "__orig_bases__",
    "__parameters__",
    "__abstractmethods__",
    "_abc_impl",
    "name",
    "__qualname__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
}


def librarys_own(answer: Any) -> str:
    """Name the library's function or class that the answer is.

    Returns "" for an answer with any code of the learner's, which may use the library. A class is the library's own
    when it, and the learner's classes that it inherits from, contain nothing but the library's code.
    """
    if isinstance(answer, type):
        return _name(answer) if _is_librarys(answer) else _of_class(answer)
    return _of_function(answer)


def _of_class(cls: type) -> str:
    classes = [base for base in cls.__mro__ if base not in members.NOT_COURSE]
    learners = [base for base in classes if not _is_librarys(base)]
    written = [value for base in learners for name, value in vars(base).items() if name not in GIVEN]
    taken = [_of_function(value) for value in written]
    inherited = [_name(base) for base in classes if _is_librarys(base)]
    return (taken or inherited or [""])[0] if all(taken) else ""


def _of_function(function: Any) -> str:
    function = members.unwrapped(function)
    return _name(function) if isinstance(function, (FunctionType, type)) and _is_librarys(function) else ""


def _is_librarys(thing: Any) -> bool:
    return (thing.__module__ or "").split(".")[0] in LIBRARY


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
