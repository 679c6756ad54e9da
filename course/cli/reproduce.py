"""Run what a post measured, and write each of its tables beside ours.

Exact facts (counts, bytes, shapes) are judged: equal, explained by a named rule, or different, and then it fails.
Times are only shown.

A post takes from seconds to some minutes on two CPU cores; with --quick, small models and few repeats, well under one.
On a GPU the models are the posts' own sizes. Not all of a post may run here: the report ends with what did not run,
and what that needs.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.arguments import unknown_name
from roseinfer.cli.command import FAILED, Failed, device_or_best, require_folder, timed_lines
from roseinfer.cli.repository import stages_package
from roseinfer.hardware import devices_here, is_here
from roseinfer.paths import has_course
from roseinfer.settings import DEVICE, MODEL

if TYPE_CHECKING:
    import torch

    from course.posts.report import PostReport, Setting

EXAMPLES = ("roseinfer reproduce 000 --quick", "roseinfer reproduce 004 --device cuda")
POSTS = {
    "000": "Performance: aten ops and spans of a decode step before and after the select-based append; throughput",
    "001": "Decode Profiling: gather, forward and write at batch 1, 4 and 8, what no label covers, a misspelt field",
    "002": "a contest report on serving: longest output first, aborts, warm-up, types, max logits as log-probabilities",
    "003": "wde's guide to tuning decoding: what its times mean, its sweep over token budgets, its executors",
    "004": "Paged Attention Block Table Cache: rows built with and without the cache; the online benchmark of both",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    posts = "\n".join(f"  {post}  {what}" for post, what in POSTS.items())
    parser.epilog = f"posts:\n{posts}\n\n{parser.epilog}"
    add = parser.add_argument
    add("post", nargs="?", help=f"one of {', '.join(POSTS)}")
    add("--device", help=DEVICE)
    add("--model", help=f"{MODEL}; by post when not given")
    add("--quick", action="store_true", help="smaller models, fewer tokens and repeats")
    out = "where <post>-<date>.md and .json go; the same day's are replaced"
    add("--out", type=Path, metavar="DIR", default=Path("reports"), help=out)


def run(args: argparse.Namespace) -> int:
    """Reproduce the post. Raises ValueError for a bad argument, and what the post's reproduction raises."""
    require_post(args.post)
    if not has_course():
        raise Failed("reproduce needs the posts' tables: run from a clone of the repository")
    setting = setting_of(args)
    post = importlib.import_module(f"course.posts.post{args.post}")
    require_device(setting.device)
    require_folder("--out", args.out)
    try:
        report = post.reproduce(setting)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was written") from None
    from course.posts.report.terminal import summary
    from roseinfer.display.text_table import terminal_width

    print(summary(report, terminal_width()), flush=True)  # a long run is not lost for a full disk
    for path in write(report, command(args, setting), args.out):
        print(f"written: {path}")
    return FAILED if report.verdicts["different"] else 0


def require_post(post: str | None) -> None:
    if post is None:
        raise ValueError(f"no post named, allowed: {', '.join(POSTS)} (with make: POST=000)")
    if post not in POSTS:
        raise ValueError(f"unknown post {unknown_name(post, POSTS)}")


def setting_of(args: argparse.Namespace) -> Setting:
    import torch

    from course.posts.report import Setting
    from roseinfer.engine.config import check_device
    from roseinfer.models import model_config

    device = device_or_best(args.device)
    check_device(device)
    if args.model:
        model_config(args.model)  # a misspelt one is refused before anything runs
    stages = {stage.name.split("_")[0]: stage for stage in stages_package().LADDER}
    return Setting(torch.device(device), stages, args.model, args.quick, timed_lines())


def require_device(device: torch.device) -> None:
    if not is_here(device):
        raise ValueError(f"--device {device}: not on this machine, which has: {', '.join(devices_here())}")


def command(args: argparse.Namespace, setting: Setting) -> str:
    """Return the command line that runs this again on the same device, whatever another machine has."""
    parts = ["roseinfer", "reproduce", args.post, "--device", str(setting.device)]
    parts += ["--model", args.model] if args.model else []
    parts += ["--quick"] if args.quick else []
    return shlex.join(parts)


def write(report: PostReport, command: str, folder: Path) -> list[Path]:
    """Write <post>-<date>.json and .md to `folder`; files of an earlier run on the same day are replaced."""
    from course.posts.report.template import to_markdown

    contents = {
        f"{report.stem}.json": f"{report.to_json()}\n".encode(),
        f"{report.stem}.md": to_markdown(report, command).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
