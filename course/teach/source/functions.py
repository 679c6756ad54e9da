"""show_source: functions of the library as they stand in its files."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from roseinfer.display.view import View, card
from roseinfer.paths import ROOT

from ..measure.kernel_loads import plain_function
from . import listing, members


@dataclass(frozen=True, repr=False)
class FunctionSource(View):
    """Source of functions. text/plain names them and their files without any lines, which change with the library."""

    functions: tuple[FunctionType, ...]

    def __repr__(self) -> str:
        return "\n".join(f"{_place(f)}: {f.__qualname__}" for f in self.functions)

    def to_html(self) -> str:
        parts = []
        for function in self.functions:
            summary = f"<code>{html.escape(_place(function))}</code>: {function.__qualname__}"
            source = members.source_of(function)
            parts.append(listing.fold(summary, listing.listing(source), len(source.splitlines())))
        return card(listing.STYLE + "".join(parts))


def show_source(*functions: Callable[..., Any]) -> FunctionSource:
    """Show the source of functions, compiled ones too. Raises ValueError for what is no function, or has no source."""
    plain = tuple(plain_function(function) for function in functions)
    if bad := [function for function in plain if not isinstance(function, FunctionType)]:
        raise ValueError(f"functions must be functions, got {bad[0]!r}")
    return FunctionSource(plain)


def _place(function: FunctionType) -> str:
    file = Path(sys.modules[function.__module__].__file__ or function.__code__.co_filename)
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
