"""The way of a result: terminal, JSON and charts, for every command that measures.

Its files are tried before the run. After it, stdout gets the tables and, unless it is a terminal, a short line of JSON
as the last one; then the files are written: JSON with every sample, and charts. What cannot be written costs the file
and not the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.command import Failed, require_writable

if TYPE_CHECKING:
    import argparse

    from roseinfer.display.measured import Result

CHARTS = (".html", ".png", ".svg", ".pdf")
DRAWN_WITH = ("altair", "vl_convert")
LAST_LINE = (
    "A table; in a pipe or a file also a short line of JSON as the last line, with what was asked, medians and ranges. "
    "--output keeps every sample."
)


def add_output(add: Callable[..., object], with_chart: bool = False) -> None:
    add("--output", type=Path, metavar="FILE", help="also write JSON there: every sample, host, versions, commit")
    if with_chart:
        add(
            "--chart",
            type=Path,
            metavar="FILE",
            action="append",
            help=f"also draw it there ({', '.join(CHARTS)}); may be given twice",
        )


def check_output(args: argparse.Namespace) -> None:
    """Raise ValueError for a file that could not be written or drawn, and ModuleNotFoundError, before a run."""
    require_writable("--output", args.output)
    for path in getattr(args, "chart", None) or ():
        require_suffix("--chart", path, CHARTS)
        require_writable("--chart", path)
        for module in DRAWN_WITH:
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def require_suffix(flag: str, path: Path, allowed: Sequence[str]) -> None:
    """Raise ValueError, naming the flag, for a path whose suffix is not allowed."""
    if path.suffix.lower() not in allowed:
        raise ValueError(f"{flag} {path}: unknown suffix {path.suffix!r}, allowed: {', '.join(allowed)}")


def deliver(
    args: argparse.Namespace,
    result: Result,
    draw: Callable[[Path], None] | None = None,
    long: bool = False,
    whole: Callable[[], str] | None = None,
) -> None:
    """Show a result's table and line, then write the whole of it and its charts.

    Raises Failed, after all of it, for a file that failed. whole: in place of result.to_json. The line and the whole
    are made after the table is shown, so a value that JSON cannot hold does not cost the table.
    """
    from roseinfer.display.text_table import terminal_width

    try:
        print(result.text(terminal_width(), long), flush=True)
        show_line(result.to_line)
    finally:  # a reader that has gone, such as `head`, costs no file
        failed, text = [], whole or result.to_json
        if args.output:
            failed += written("--output", args.output, lambda path: path.write_text(text() + "\n", encoding="utf-8"))
        if draw:
            for path in getattr(args, "chart", None) or ():
                failed += written("--chart", path, draw)
    if failed:
        raise Failed("; ".join(failed))


def show_line(line: Callable[[], str]) -> None:
    """Print a line of JSON, for the program that reads stdout. At a terminal it would push the table away."""
    if not sys.stdout.isatty():
        print(line(), flush=True)


def written(flag: str, path: Path, write: Callable[[Path], object]) -> list[str]:
    """Write a file. Return [] or one line that says why it failed."""
    try:
        write(path)
    except (OSError, ValueError) as error:
        return [f"{flag} {path}: could not be written ({getattr(error, 'strerror', None) or error})"]
    return []
