"""python -m roseinfer.cli.gpu_report: check and measure everything on one GPU; the result is kept in data/."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from roseinfer.paths import DATA

if TYPE_CHECKING:
    from roseinfer.bench.gpu_report import Course

FAILED, INTERRUPTED = 1, 130
NEEDS = "gpu-report needs an NVIDIA GPU, torch for CUDA, and Triton 3.6 to 3.9"


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0; 1 when a check or a stage fails (the report says which), or without a GPU; 130 for Ctrl-C."""
    args = parser().parse_args(argv)
    if reason := what_is_missing():
        print(f"error: {NEEDS}: {reason}", file=sys.stderr)
        return FAILED
    try:
        return run(args)
    except KeyboardInterrupt:
        print("interrupted: the file holds the parts that were finished", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m roseinfer.cli.gpu_report",
        description="On this machine's GPU, in under 8 minutes: check every kernel and the tokens of every stage, and "
        "race all stages. Writes runs/<gpu>/<date>-<commit>.json and traces/<gpu>/*.json.gz, which the notebooks "
        "show; a report of the same day and commit is replaced.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--quick", action="store_true", help="about a minute: fewer shapes, batch size 8 only")
    p.add_argument("--out", type=Path, metavar="DIR", default=DATA, help="where runs/ and traces/ are")
    p.add_argument("--commit", help="of this code, where git cannot tell (a copy that is no clone)")
    return p


def what_is_missing() -> str | None:
    """Why no report can be made here, in one line; None when one can."""
    import torch

    from roseinfer.kernels import triton_mode

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU (try `make doctor`)"
    if triton_mode.MODE == "interpret":
        return "Triton's interpreter was asked for (ROSEINFER_TRITON or TRITON_INTERPRET)"
    return triton_mode.unavailable()


def run(args: argparse.Namespace) -> int:
    import torch

    from roseinfer.bench.gpu_report import FULL, QUICK, run_report, summary
    from roseinfer.display.cells import terminal_width

    started = perf_counter()

    def say(text: str) -> None:
        print(f"{perf_counter() - started:5.0f} s  {text}", file=sys.stderr, flush=True)

    report = run_report(
        course(), QUICK if args.quick else FULL, device=torch.device("cuda:0"), folder=args.out, commit=args.commit,
        say=say,
    )  # fmt: skip
    print(summary(report.data, terminal_width()))
    print(f"written: {report.path}")
    return FAILED if report.failures else 0


def course() -> Course:
    """Every stage, and the newest kernel with its reference. Looked up at run time, as in roseinfer.cli.ladder."""
    from roseinfer.bench.gpu_report import Course

    kernels = importlib.import_module("stages.s07_triton_paged")
    return Course(
        stages=importlib.import_module("stages").LADDER,
        reference=kernels.paged_attention_reference,
        kernel=kernels.paged_attention_triton,
    )


if __name__ == "__main__":
    sys.exit(main())
