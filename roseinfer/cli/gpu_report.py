"""Check every kernel, stage and engine on this machine's GPU, and race them: under 8 minutes.

Tokens are checked in float32, float16 and bfloat16, the engine's with CUDA graphs and without.

Writes runs/<gpu>/<date>-<commit>.json and traces/<gpu>/*.json.gz, which the notebooks show; a report of the same day
and commit is replaced. It fails when a check or a stage does (the report says which), and without a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli import clone
from roseinfer.cli.command import FAILED, Failed, require_folder, timed_lines
from roseinfer.paths import DATA

if TYPE_CHECKING:
    from roseinfer.bench.gpu_report import Course

NEEDS = "gpu-report needs an NVIDIA GPU, torch for CUDA, and Triton 3.6 to 3.9"
EXAMPLES = ("roseinfer gpu-report --quick", "roseinfer gpu-report --out data")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer shapes, batch size 8 only")
    parser.add_argument("--out", type=Path, metavar="DIR", default=DATA, help="where runs/ and traces/ are")
    parser.add_argument("--commit", help="of this code, where git cannot tell (a copy that is no clone)")


def run(args: argparse.Namespace) -> int:
    if reason := what_is_missing():
        raise Failed(f"{NEEDS}: {reason}")
    require_folder("--out", args.out)
    import torch

    from roseinfer.bench.gpu_report import FULL, QUICK, run_report, summary
    from roseinfer.display.cells import terminal_width

    try:
        report = run_report(
            course(), QUICK if args.quick else FULL, device=torch.device("cuda:0"), folder=args.out,
            commit=args.commit, say=timed_lines(), isolated=True,
        )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the file holds the parts that were finished") from None
    print(summary(report.data, terminal_width()))
    print(f"written: {report.path}")
    return FAILED if report.failures else 0


def what_is_missing() -> str | None:
    """Why no report can be made here, in one line; None when one can."""
    import torch

    from roseinfer.kernels import triton_mode

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU (try `make doctor`)"
    if triton_mode.MODE == "interpret":
        return "Triton's interpreter was asked for (ROSEINFER_TRITON or TRITON_INTERPRET)"
    return triton_mode.unavailable()


def course() -> Course:
    """Every stage that runs on a GPU, the engine without and with graphs, and stage 07's kernel with its reference."""
    import torch

    from roseinfer.bench.gpu_report import ENGINES, Course

    lessons, kernels = clone.course().LADDER, clone.course().s07_triton_paged
    return Course(
        stages=[stage for stage in (*lessons, *ENGINES) if not stage.why_untimed(torch.device("cuda"))],
        reference=kernels.paged_attention_reference, kernel=kernels.paged_attention_triton,
    )  # fmt: skip
