"""One table of what will run on this machine, and how to fix what will not.

Exit status 1 while something is missing without which the course does not run.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from roseinfer import doctor
from roseinfer.cli.command import FAILED

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = ("roseinfer doctor", "roseinfer doctor --json")
PLAIN_WIDTH = 200  # of the table where there is no terminal to ask
COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    report = doctor.diagnose()
    try:
        shown = None if args.json else table(report)
    except ImportError:  # the table's own library is missing, the diagnosis is not
        shown = None
    if shown is None:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        from rich.console import Console

        console = Console()
        (console if console.is_terminal else Console(width=PLAIN_WIDTH)).print(shown, report.verdict)
    return 0 if report.ok else FAILED


def table(report: doctor.Report) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("", "found", "", "what it means", title="What will run here", box=box.SIMPLE_HEAD)
    for c in report.checks:
        advice = Text(c.means).append(f"\n→ {c.fix}" if c.fix else "", style="yellow")
        table.add_row(Text(c.what, "bold"), Text(c.found), Text(c.status, COLOURS[c.status]), advice)
    return table
