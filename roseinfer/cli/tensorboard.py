"""python -m roseinfer.cli.tensorboard: a few stages' decode steps in TensorBoard's profiler tab, side by side."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .ladder import BAD_ARGUMENT, FAILED, INTERRUPTED, chosen_stages, complain

if TYPE_CHECKING:
    from roseinfer.models import Model
    from roseinfer.profiling import Trace
    from roseinfer.stage import Stage

LOOPBACK = "127.0.0.1"
BATCH_SIZE, PROMPT_LEN, STEPS, WARMUP = 8, 8, 3, 2


def main(argv: list[str] | None = None) -> int:
    """Exit status, when it does not serve: 0; 1 when a stage fails; 2 for a bad argument; 130 for Ctrl-C."""
    args = parser().parse_args(argv)
    try:
        # Imported here, so that --help is instant and Ctrl-C while torch loads leaves cleanly too.
        from roseinfer.bench import ContenderFailed

        try:
            port = None if args.no_serve else free_port(args.port)
            capture_stages(args)
        except ContenderFailed as error:
            return complain(error, FAILED)
        except ValueError as error:
            return complain(error, BAD_ARGUMENT)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if port is not None:
        serve(args.logdir, port)
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m roseinfer.cli.tensorboard",
        description=f"Profile {STEPS} decode steps of {BATCH_SIZE} sequences of each stage, a run each, and serve them "
        "with TensorBoard, on this machine's loopback address alone: open the PYTORCH_PROFILER tab.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--stages", default="s01,s04", help="whose steps stand side by side")
    p.add_argument("--model", default="tiny", help="tiny, random:gpt2, a local folder in HF format, or a hub id")
    p.add_argument("--device", help="cpu, cuda, ...; cuda where there is one when not given")
    p.add_argument("--logdir", type=Path, metavar="DIR", default=Path("tb"), help="a stage's earlier run is replaced")
    p.add_argument("--port", type=int, default=6006, help="0 for any that is free")
    p.add_argument("--no-serve", action="store_true", help="only write the runs")
    return p


def capture_stages(args: argparse.Namespace) -> None:
    """Raises ValueError for a bad argument, ContenderFailed for a stage that fails."""
    import torch

    from roseinfer.models import load_model

    stages = chosen_stages(args.stages)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(args.model, device=device)
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
    """The trace as the run `name`; one that lies there already is replaced."""
    folder = logdir / name
    earlier = list(folder.glob(f"{name}.*.pt.trace.json.gz"))
    path = trace.to_tensorboard(folder, worker=name)
    for file in earlier:
        file.unlink()
    return path


def free_port(port: int) -> int:
    """The port, or any that is free for 0. Raises ValueError when it cannot be had."""
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
    """Becomes this environment's TensorBoard, which Ctrl-C ends."""
    print(f"TensorBoard: http://{LOOPBACK}:{port}/#pytorch_profiler")
    print("open the PYTORCH_PROFILER tab, Views: Overview, Operator, Trace; Ctrl-C ends it")
    print("(the browser fetches the tab's charts from www.gstatic.com; python -m roseinfer.cli.trace needs no network)",
          flush=True)  # fmt: skip
    options = ["--logdir", str(logdir), "--host", LOOPBACK, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *options])


if __name__ == "__main__":
    sys.exit(main())
