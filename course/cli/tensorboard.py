"""Profile a few stages' decode steps, and serve them in TensorBoard's profiler tab, side by side.

TensorBoard listens on this machine's loopback address alone: open the PYTORCH_PROFILER tab. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from roseinfer.cli.command import device_or_best, require_folder
from roseinfer.cli.repository import chosen_stages
from roseinfer.settings import DEVICE, MODEL

if TYPE_CHECKING:
    from roseinfer.models import Model
    from roseinfer.profiling import Trace
    from roseinfer.stage import Stage

EXAMPLES = ("roseinfer tensorboard --stages s01,s03 --port 0", "roseinfer tensorboard --logdir tb --no-serve")
LOOPBACK = "127.0.0.1"
BATCH_SIZE, PROMPT_LEN, STEPS, WARMUP = 8, 8, 3, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--stages", default="s01,s04", help="whose steps stand side by side")
    add("--model", default="tiny", help=MODEL)
    add("--device", help=DEVICE)
    add("--logdir", type=Path, metavar="DIR", default=Path("tb"), help="a stage's earlier run is replaced")
    add("--port", type=int, default=6006, help="0 for any that is free")
    add("--no-serve", action="store_true", help="only write the runs")


def run(args: argparse.Namespace) -> None:
    """Capture the stages, and serve them unless --no-serve is given; serving never returns.

    Raises ValueError for a bad argument, and ContenderFailed for a stage that fails.
    """
    port = None if args.no_serve else free_port(args.port)
    capture_stages(args)
    if port is not None:
        serve(args.logdir, port)


def capture_stages(args: argparse.Namespace) -> None:
    from roseinfer.models import load_model

    stages = chosen_stages(args.stages)
    model = load_model(args.model, device=device_or_best(args.device))
    require_folder("--logdir", args.logdir)
    for stage in stages:
        trace = captured_steps(stage, model)
        print(f"written: {write_run(trace, args.logdir, stage.name)}", flush=True)


def captured_steps(stage_class: type[Stage], model: Model) -> Trace:
    from roseinfer.bench.contenders import StageContender
    from roseinfer.bench.ladder import random_prompts
    from roseinfer.generate import decode_step
    from roseinfer.profiling import capture

    prompts = random_prompts(model, BATCH_SIZE, PROMPT_LEN)
    # A token of the prefill, one of the step that capture does not profile.
    entrant = StageContender(stage_class, model, prompts, max_new_tokens=2 + WARMUP + STEPS)
    stage, seqs = entrant.at_step(0)
    return capture(lambda: decode_step(stage, seqs), steps=STEPS, warmup=WARMUP, record_shapes=True)


def write_run(trace: Trace, logdir: Path, name: str) -> Path:
    """Write the trace as the run `name`, in place of an earlier one of that name."""
    folder = logdir / name
    earlier = list(folder.glob(f"{name}.*.pt.trace.json.gz"))
    path = trace.to_tensorboard(folder, worker=name)
    for file in earlier:
        file.unlink()
    return path


def free_port(port: int) -> int:
    """Return the port, or for 0 any free one. Raises ValueError if the port cannot be had."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port {port}: must be an integer from 0 to {2**16 - 1}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was left a moment ago is free
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ValueError(f"--port {port}: {error.strerror}; --port 0 takes any that is free") from error
        return probe.getsockname()[1]


def serve(logdir: Path, port: int) -> NoReturn:
    """Replace this process by this environment's TensorBoard, which Ctrl-C ends."""
    print(f"TensorBoard: http://{LOOPBACK}:{port}/#pytorch_profiler")
    print("open the PYTORCH_PROFILER tab, Views: Overview, Operator, Trace; Ctrl-C ends it")
    print("(the browser fetches the tab's charts from www.gstatic.com; roseinfer trace needs no network)", flush=True)
    options = ["--logdir", str(logdir), "--host", LOOPBACK, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *options])
