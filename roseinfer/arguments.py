"""Checks of arguments that several parts share."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeGuard, TypeVar

MOST_NAMES, LONGEST_NAME = 40, 100  # in one line of an error
Owner = TypeVar("Owner")
T = TypeVar("T")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether the value is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_count(argument: str, value: object, at_least: int, at_most: int | None = None) -> None:
    """Raise ValueError, naming the argument and the value, unless it is an integer from `at_least` to `at_most`."""
    if not is_integer(value) or value < at_least or (at_most is not None and value > at_most):
        allowed = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most:,}"
        raise ValueError(f"{argument} must be an integer {allowed}, got {value!r}")


def each_once(argument: str, values: Sequence[T], at_least: int = 1) -> Sequence[T]:
    """Return the values. Raises ValueError, naming the argument, for no list, one that is there twice and too few."""
    is_list = isinstance(values, Collection) and not isinstance(values, str)
    if not is_list or len(values) < at_least or len(set(values)) != len(values):
        raise ValueError(f"{argument} must be a list with each value once, got {values!r}")
    return values


def require_counts(argument: str, values: Sequence[int], at_least: int = 1) -> None:
    """Raise ValueError, naming the argument, unless each value is there once and passes require_count."""
    for value in each_once(argument, values):
        require_count(argument, value, at_least)


def require_known(argument: str, name: str, allowed: Iterable[str]) -> None:
    """Raise ValueError, with the allowed name that is nearest, unless the name is allowed."""
    if name not in allowed:
        raise ValueError(f"{argument}: unknown value {unknown_name(name, allowed)}")


def require_positive(argument: str, value: object) -> None:
    """Raise ValueError, naming the argument and the value, unless it is a finite number above 0."""
    if not (is_integer(value) or isinstance(value, float)) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{argument} must be a number above 0, got {value!r}")


def require_not_negative(argument: str, value: object) -> None:
    """Raise ValueError, naming the argument and the value, unless it is a finite number of at least 0."""
    if not (is_integer(value) or isinstance(value, float)) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{argument} must be a number of at least 0, got {value!r}")


def counted(number: int, noun: str, verb: str = "") -> str:
    """Return a number with its noun: "1 thread", "2 threads"; with the verb "waits/wait": "1 thread waits"."""
    is_one = number == 1
    agreeing = verb.split("/")[not is_one] if verb else ""
    return f"{number:,} {noun}{'' if is_one else 's'} {agreeing}".rstrip()


def unknown_name(name: str, allowed: Iterable[str]) -> str:
    """Return an unknown name as an error shows it: with the nearest allowed one, if any is near, and the others."""
    allowed = list(allowed)
    nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.3)
    hint = f" (nearest: {shortened(nearest[0])})" if nearest else ""
    return f"{shortened(repr(name))}{hint}, allowed: {listed(allowed)}"


def refuse_wrong_arguments(not_taken: Mapping[str, str] | None = None) -> Callable[[type[Owner]], type[Owner]]:
    """Decorate a class so that an unknown or missing constructor argument raises ValueError instead of TypeError.

    The message for an unknown one names the nearest and lists them all. not_taken: names of vLLM's arguments that the
    class does not have, each with what to use instead.
    """
    instead = not_taken or {}

    def refusing(cls: type[Owner]) -> type[Owner]:
        init: Any = cls.__init__
        _, *parameters = inspect.signature(init).parameters.values()
        names = [parameter.name for parameter in parameters]
        num_positional = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters)

        @wraps(init)
        def checked_init(self: Owner, *values: Any, **keywords: Any) -> None:
            for name in keywords:
                if name in instead:
                    raise ValueError(f"{cls.__name__} does not take {name}, as vLLM's does: {instead[name]}")
                if name not in names:
                    raise ValueError(f"{cls.__name__} has no argument {unknown_name(name, names)}")
            missing = [p.name for p in parameters[len(values) :] if p.default is p.empty and p.name not in keywords]
            if missing and len(values) <= num_positional:  # else `init` says that there are too many
                raise ValueError(f"{cls.__name__} needs a value for {' and '.join(missing)}")
            init(self, *values, **keywords)

        cls.__init__ = checked_init  # type: ignore[method-assign, assignment]
        return cls

    return refusing


def takes_settings(config: type, apart_from: str) -> Callable[[type[Owner]], type[Owner]]:
    """Decorate a class whose constructor has **settings, fields of a dataclass: its signature names them.

    apart_from: a field that it works out itself.
    """
    fields = [p for p in inspect.signature(config).parameters.values() if p.name != apart_from]

    def named(cls: type[Owner]) -> type[Owner]:
        signature = inspect.signature(cls.__init__)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        init: Any = cls.__init__
        init.__signature__ = signature.replace(parameters=[*own, *fields])
        return cls

    return named


def listed(names: Iterable[str]) -> str:
    """Return names for one line: if there are very many, the first ones and how many more there are."""
    names = list(names)
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(shortened, names[:MOST_NAMES])) + more


def shortened(name: str) -> str:
    """Put a text on one line, and cut a very long one."""
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
