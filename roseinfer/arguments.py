"""Checks of arguments that several parts share."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterable
from functools import wraps
from typing import Any, TypeVar

MOST_NAMES, LONGEST_NAME = 40, 100  # in one line of an error
Owner = TypeVar("Owner")


def is_integer(value: object) -> bool:
    """True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_count(argument: str, value: object, at_least: int, at_most: int | None = None) -> None:
    """Raises ValueError, naming the argument and the value, unless it is an integer of at least `at_least`."""
    if not is_integer(value) or value < at_least or (at_most is not None and value > at_most):
        allowed = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most:,}"
        raise ValueError(f"{argument} must be an integer {allowed}, got {value!r}")


def require_positive(argument: str, value: object) -> None:
    """Raises ValueError, naming the argument and the value, unless it is a finite number above 0."""
    is_number = is_integer(value) or isinstance(value, float)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{argument} must be a number above 0, got {value!r}")


def counted(number: int, noun: str) -> str:
    """"1 thread", "2 threads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def unknown_name(name: str, allowed: Iterable[str]) -> str:
    """The unknown name as an error message shows it: with the nearest allowed one, if any is near, and the others."""
    allowed = list(allowed)
    nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.3)
    hint = f" (nearest: {shortened(nearest[0])})" if nearest else ""
    return f"{shortened(repr(name))}{hint}, allowed: {listed(allowed)}"


def refuse_wrong_arguments(cls: type[Owner]) -> type[Owner]:
    """Class decorator: an unknown or missing argument of the constructor raises ValueError instead of TypeError.

    The message for an unknown one names the nearest and lists them all.
    """
    init = cls.__init__
    _, *parameters = inspect.signature(init).parameters.values()
    names = [parameter.name for parameter in parameters]

    @wraps(init)
    def checked_init(self: Owner, *values: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in names:
                raise ValueError(f"{cls.__name__} has no argument {unknown_name(name, names)}")
        missing = [p.name for p in parameters[len(values) :] if p.default is p.empty and p.name not in keywords]
        if missing:
            raise ValueError(f"{cls.__name__} needs a value for {' and '.join(missing)}")
        init(self, *values, **keywords)

    cls.__init__ = checked_init
    return cls


def listed(names: Iterable[str]) -> str:
    """Names for a line: of very many the first, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(shortened, names[:MOST_NAMES])) + more


def shortened(name: str) -> str:
    """On one line, and of a very long one the start."""
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
