"""side_by_side: lines of one function beside the lines of another that do the same, taken from their sources."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roseinfer.display.view import View, card, inline

from ..measure.kernel_loads import plain_function
from . import listing

Beginnings = str | tuple[str, ...]


@dataclass(frozen=True, repr=False)
class SideBySide(View):
    """Lines of two functions. heads: their names. pairs: idea -> (lines of the one, lines of the other)."""

    heads: tuple[str, str]
    pairs: Mapping[str, tuple[list[str], list[str]]]

    def __repr__(self) -> str:
        width = max(map(len, self.heads))
        lines = []
        for idea, sides in self.pairs.items():
            lines.append(idea)
            for head, code in zip(self.heads, sides, strict=True):
                lines += [f"  {head if i == 0 else '':<{width}}  {line}" for i, line in enumerate(code)]
        return "\n".join(lines)

    def to_html(self) -> str:
        rows = []
        for idea, sides in self.pairs.items():
            rows.append(f'<tr><td colspan="2" style="text-align: left; padding-top: 8px">{inline(idea)}</td></tr>')
            no_sign = listing.SIGN["none"]
            cells = ("".join(listing.wrapped_lines("\n".join(code), no_sign)) if code else "" for code in sides)
            style = f"{listing.CELL}; background-color: {listing.BACKGROUND['none']}"
            rows.append("<tr>" + "".join(f'<td style="{style}">{cell}</td>' for cell in cells) + "</tr>")
        lines = [line for sides in self.pairs.values() for code in sides for line in code]
        return card(listing.STYLE + listing.two_columns(self.heads, rows, lines))


def side_by_side(
    left: Callable[..., Any], right: Callable[..., Any], pairs: Mapping[str, tuple[Beginnings, Beginnings]]
) -> SideBySide:
    """Show lines of two functions (or Triton kernels) that carry out the same ideas beside each other.

    pairs: maps an idea to how its lines begin, in left and in right: one beginning, several, or (). Raises ValueError
    for a beginning that is not the beginning of exactly one line.
    """
    left, right = plain_function(left), plain_function(right)
    found = {idea: (_lines(left, a), _lines(right, b)) for idea, (a, b) in pairs.items()}
    return SideBySide((left.__name__, right.__name__), found)


def _lines(function: Callable[..., Any], beginnings: Beginnings) -> list[str]:
    source = [line.strip() for line in textwrap.dedent(inspect.getsource(function)).splitlines()]
    found = []
    for beginning in [beginnings] if isinstance(beginnings, str) else beginnings:
        matches = [line for line in source if line.startswith(beginning)]
        if len(matches) != 1:
            raise ValueError(f"{beginning!r} begins {len(matches)} lines of {function.__name__}, expected one")
        found += matches
    return found
