"""show_source: functions and classes of the library as they stand in their files."""

from __future__ import annotations

import html
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roseinfer.display.view import View, card

from ..measure.kernel_loads import plain_function
from .listing import listing

Thing = type | Callable[..., Any]


@dataclass(frozen=True, repr=False)
class LibrarySource(View):
    """sources: "path: name" -> source."""

    sources: dict[str, str]

    def __repr__(self) -> str:
        return "\n".join(self.sources)

    def to_html(self) -> str:
        folds = (
            f"<details open><summary><code>{html.escape(title)}</code></summary>{listing(source)}</details>"
            for title, source in self.sources.items()
        )
        return card("".join(folds))


def show_source(*things: Thing) -> LibrarySource:
    """Each with its file. things: functions, methods and classes of the library; compiled functions, too.

    Raises ValueError when one is none of these, or none is given.
    """
    if not things:
        raise ValueError("things must hold at least one function or class, got none")
    return LibrarySource(dict(map(_titled_source, things)))


def _titled_source(thing: Thing) -> tuple[str, str]:
    plain = plain_function(thing)
    module = getattr(plain, "__module__", None) or ""
    if not (inspect.isfunction(plain) or inspect.isclass(plain)) or not module.startswith("roseinfer."):
        raise ValueError(f"things must be functions or classes of roseinfer, got {thing!r}")
    source = textwrap.dedent(inspect.getsource(plain)).rstrip()
    return f"{module.replace('.', '/')}.py: {plain.__qualname__}", source
