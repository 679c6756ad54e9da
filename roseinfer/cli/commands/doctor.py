"""One table of what will run on this machine, and how to fix what will not.

Exit status 1 while something is missing without which the course does not run.
"""

from __future__ import annotations

import argparse
import json

from roseinfer import doctor
from roseinfer.cli.command import FAILED
from roseinfer.display.text_table import TextTable, terminal_width

EXAMPLES = ("roseinfer doctor", "roseinfer doctor --json")
PLAIN_WIDTH = 120  # of the table where there is no terminal to ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    report = doctor.diagnose()
    if args.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print(f"{table(report).text(terminal_width() or PLAIN_WIDTH)}\n\n{report.verdict}")
    return 0 if report.ok else FAILED


def table(report: doctor.Report) -> TextTable:
    rows = [(c.what, c.found, c.status, f"{c.means}\n→ {c.fix}" if c.fix else c.means) for c in report.checks]
    return TextTable.of(["what", "found", "status", "what it means"], rows)
