"""Flags from the fields of a dataclass: type, default and help of each stand once, beside each other.

`add_flags` makes the flags, and `settings_of` makes the dataclass from what was typed. Lists are typed as 1,8,64 and
ranges as 16-256. Nothing here imports torch: --help is instant.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from roseinfer.arrivals import Range
from roseinfer.cli.command import require_named

T = TypeVar("T")


def add_flags(add: Callable[..., object], settings: type, **abouts: str) -> None:
    """Add a flag for each field that has a help. abouts: by field, other words for the help of this command."""
    types = get_type_hints(settings)
    for own in fields(settings):
        if about := abouts.get(own.name) or own.metadata.get("help"):
            short = own.metadata.get("short")
            add(*([short] if short else []), _name(own), help=about, **_options(own, _without_none(types[own.name])))


def settings_of(settings: type[T], args: argparse.Namespace) -> T:
    """Make the dataclass from the flags. Raises ValueError for a list or a range without its form, naming the flag."""
    return settings(**given_fields(settings, args))


def given_fields(settings: type, args: argparse.Namespace) -> dict[str, Any]:
    """Collect the fields whose flags were typed or have a default. Raises ValueError as settings_of does."""
    types, values = get_type_hints(settings), {}
    for own in fields(settings):
        given = getattr(args, _place(own), None)
        if given is not None:
            parse = PARSERS.get(_without_none(types[own.name]))
            values[own.name] = parse(_name(own), given) if parse else given
    return values


def refuse_changed(settings: Any, why: Mapping[str, str]) -> None:
    """Raise ValueError for a flag that was changed, and has no effect. why: the reason, by field."""
    default, types = type(settings)(), get_type_hints(type(settings))
    for own in fields(settings):
        value = getattr(settings, own.name)
        if own.name in why and value != getattr(default, own.name):
            flag = f"--no-{own.name}" if value is False else f"{_name(own)} {_typed(value, types[own.name])}"
            raise ValueError(f"{flag}: {why[own.name]}")


def _name(own: Field[Any]) -> str:
    return own.metadata.get("flag") or f"--{own.name.replace('_', '-')}"


def _place(own: Field[Any]) -> str:
    """Return a field's name in the namespace."""
    return _name(own).removeprefix("--").replace("-", "_")


def _options(own: Field[Any], kind: Any) -> dict[str, Any]:
    options = {"default": None if own.default is MISSING else _typed(own.default, kind)}
    if kind is bool:  # --flag and --no-flag
        return options | {"action": argparse.BooleanOptionalAction} | own.metadata.get("options", {})
    if kind in (int, float, Path):
        options["type"] = kind
    return options | own.metadata.get("options", {})


def _without_none(kind: Any) -> Any:
    """Return X for X | None."""
    return next(part for part in get_args(kind) if part is not type(None)) if isinstance(kind, UnionType) else kind


def _typed(default: Any, kind: Any) -> Any:
    """Return the default as one would type it; None for an empty list."""
    if not isinstance(default, tuple):
        return default
    each = dict.fromkeys(map(str, default)) if kind == Range else map(str, default)
    return ("-" if kind == Range else ",").join(each) or None


def numbers(kind: Callable[[str], T], kinds: str, example: str, flag: str, text: str) -> list[T]:
    """Return [1, 8, 64] for "1,8,64". kinds, example: for the error. Raises ValueError, naming the flag."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r}: must be {kinds} with commas between them, such as {example}") from None


def names(flag: str, text: str) -> list[str]:
    """Return ["a", "b"] for "a,b", and [] for "none". Raises ValueError for a blank text, naming the flag."""
    require_named(flag, text)
    return [] if text == "none" else [name.strip() for name in text.split(",")]


def lengths(flag: str, text: str) -> Range:
    """Return the least and the most of "16-256", and twice 256 for "256". Raises ValueError, naming the flag."""
    low, dash, high = text.partition("-")
    try:
        least, most = int(low), int(high if dash else low)
    except ValueError:
        least, most = 0, 0
    if not 1 <= least <= most:
        raise ValueError(f"{flag} {text!r}: must be a number of tokens, or the least and the most, such as 16-256")
    return least, most


PARSERS: dict[Any, Callable[[str, Any], Any]] = {
    Sequence[int]: partial(numbers, int, "integers", "1,8,64"),
    Sequence[float]: partial(numbers, float, "numbers", "0.5,2"),
    Sequence[str]: names,
    Range: lengths,
}
