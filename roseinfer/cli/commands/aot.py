"""Compile the course's kernels for GPUs that need not be here.

Registers, spills and shared memory of every shape, for sm_80 (A100) and sm_90 (H100, H200).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.command import Failed, require_folder
from roseinfer.cli.repository import stages_package

if TYPE_CHECKING:
    from roseinfer.kernels.aot import Program

EXAMPLES = ("roseinfer aot", "roseinfer aot --module paged_triton --out data/kernels")
MODULES = ("s07_triton_paged", "paged_triton", "fused_triton")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--module", choices=MODULES, help="whose kernels; of all when not given")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write the figures there, a JSON file a module")


def run(args: argparse.Namespace) -> int | None:
    if args.out:
        require_folder("--out", args.out)
    from roseinfer.kernels import triton_mode
    from roseinfer.kernels.aot import rows

    if triton_mode.language() is None:
        raise Failed(triton_mode.unavailable())
    if triton_mode.MODE != "compile":  # decided when Triton is imported, so a process of its own
        options = {"--module": args.module, "--out": args.out}
        given = [str(word) for option in options.items() if option[1] for word in option]
        command = [sys.executable, "-m", "roseinfer", "aot", *given]
        environ = os.environ | {triton_mode.VARIABLE: "compile"}
        return subprocess.run(command, env=environ, start_new_session=True).returncode  # one of the two hears Ctrl-C
    import triton

    for module in [args.module] if args.module else MODULES:
        print(module, flush=True)
        found = []
        for row in rows(programs_of(module)):
            print("  ".join(f"{name} {value}" for name, value in row.items() if value is not None), flush=True)
            found.append(row)
        if args.out:
            text = json.dumps({"triton": triton.__version__, "rows": found}, indent=1)
            (args.out / f"{module}.json").write_text(text + "\n", encoding="utf-8")
    return None


def programs_of(module: str) -> Iterator[Program]:
    """Return the programs of one of MODULES."""
    from roseinfer.kernels.aot import flat_programs, fused_programs, stage07_programs

    if module == "s07_triton_paged":
        return stage07_programs(stages_package().s07_triton_paged)
    return flat_programs() if module == "paged_triton" else fused_programs()
