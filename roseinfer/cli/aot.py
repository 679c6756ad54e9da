"""Compile the course's kernel for GPUs that need not be here.

Registers, spills and shared memory of every shape, for sm_80 (A100) and sm_90 (H100, H200).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from roseinfer.cli.clone import course
from roseinfer.cli.command import Failed, require_writable

EXAMPLES = ("roseinfer aot", "roseinfer aot --json rows.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there, as JSON")


def run(args: argparse.Namespace) -> int | None:
    require_writable("--json", args.json)
    from roseinfer.kernels import triton_mode
    from roseinfer.kernels.aot import rows

    if triton_mode.language() is None:
        raise Failed(triton_mode.unavailable())
    if triton_mode.MODE != "compile":  # decided when Triton is imported, so a process of its own
        command = [sys.executable, "-m", "roseinfer", "aot", *(["--json", str(args.json)] if args.json else [])]
        environ = os.environ | {triton_mode.VARIABLE: "compile"}
        return subprocess.run(command, env=environ, start_new_session=True).returncode  # one of the two hears Ctrl-C
    import triton

    found = []
    for row in rows(course().s07_triton_paged):
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        found.append(row)
    if args.json:
        text = json.dumps({"triton": triton.__version__, "rows": found}, indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")
    return None
