"""Checks of arguments that several parts share."""

from __future__ import annotations


def require_count(argument: str, value: object, at_least: int) -> None:
    """Raises ValueError, naming the argument and the value, unless it is an integer of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{argument} must be an integer of at least {at_least}, got {value!r}")
