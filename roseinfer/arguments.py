"""Checks of arguments that several parts share."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable


def is_integer(value: object) -> bool:
    """True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_count(argument: str, value: object, at_least: int) -> None:
    """Raises ValueError, naming the argument and the value, unless it is an integer of at least `at_least`."""
    if not is_integer(value) or value < at_least:
        raise ValueError(f"{argument} must be an integer of at least {at_least}, got {value!r}")


def require_positive(argument: str, value: object) -> None:
    """Raises ValueError, naming the argument and the value, unless it is a finite number above 0."""
    is_number = is_integer(value) or isinstance(value, float)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{argument} must be a number above 0, got {value!r}")


def unknown_name(name: str, allowed: Iterable[str]) -> str:
    """The unknown name as an error message shows it: with the nearest allowed one, if any is near, and all of them."""
    allowed = list(allowed)
    nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.3)
    hint = f" (nearest: {nearest[0]})" if nearest else ""
    return f"{name!r}{hint}, allowed: {', '.join(allowed)}"
