"""python -m roseinfer.benchmark_scheduler: the posts' own command line and output lines."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from roseinfer.arguments import require_count
from roseinfer.bench.interleave import interleaved, phase_of
from roseinfer.bench.provenance import describe_host
from roseinfer.bench.scheduler import MODE, ServerRun, serve, summarize
from roseinfer.bench.scheduler.arguments import add_arguments, model_spec, workload
from roseinfer.bench.scheduler.figures import FIGURES, run_lines, summary_lines
from roseinfer.cli.command import (
    STATUSES,
    Failed,
    Parser,
    device_or_best,
    exit_status,
    require_folder,
    require_writable,
    run_with,
)
from roseinfer.cli.memory_check import require_memory
from roseinfer.cli.output import written
from roseinfer.cli.repository import chosen_stages, stages_package
from roseinfer.models import Model, load_model, model_config
from roseinfer.profiling import Trace
from roseinfer.stage import Stage

Serve = Callable[..., tuple[ServerRun, Trace | None]]


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit status. Raises SystemExit for --help."""
    return exit_status(lambda: run_with(run, parser().parse_args(argv)), is_process=argv is None)


def parser() -> Parser:
    fill = textwrap.TextWrapper(width=110, initial_indent="  ", subsequent_indent="      ").fill
    defined = "\n".join(fill(f"{name}: {text}.") for name, text in FIGURES.items())
    p = Parser(
        prog="python -m roseinfer.benchmark_scheduler",
        description="Serve requests that all arrive at once, as the posts' benchmark does, and print its lines.",
        epilog=f"what is printed:\n{defined}\n\n{STATUSES}",
    )
    add_arguments(p)
    return p


def run(args: argparse.Namespace) -> None:
    """Serve requests and print the lines. Raises ValueError for a bad argument, OSError for a file it cannot write."""
    check(args)
    spec = model_spec(args)
    device = device_or_best(args.device)
    dtype = dtype_of(args, device)
    longest = 1 + args.max_new_tokens  # of a prompt of one token
    allowed = model_config(spec).max_model_len
    if longest > allowed:
        raise ValueError(f"--max-new-tokens {args.max_new_tokens}: allowed: {allowed} tokens with the prompt")
    name = str(dtype).removeprefix("torch.")
    require_memory("--num-requests", args.num_requests, longest, model=spec, dtype=name, device=device)
    model = load_model(spec, device=device, dtype=dtype)
    stage = chosen_stage(args, model.device)
    serve_one = partial(
        serve,
        stage_class=stage,
        model=model,
        workload=workload(args, spec, model),
        max_batch_size=args.max_batch_size,
        prefix_caching=not args.no_prefix_cache,
    )
    runs = (profiled if args.profile else repeated)(args, serve_one)
    if args.output:
        whole = record(args, stage, model, runs) + "\n"
        if failed := written("--output", args.output, lambda path: path.write_text(whole, encoding="utf-8")):
            raise Failed(*failed)


def check(args: argparse.Namespace) -> None:
    for name, least in (("num_requests", 1), ("max_batch_size", 1), ("warmup_runs", 0), ("repeat_runs", 1)):
        require_count(f"--{name.replace('_', '-')}", getattr(args, name), at_least=least)
    require_writable("--output", args.output)
    if args.profile:
        require_folder("--profile-dir", args.profile_dir)


def dtype_of(args: argparse.Namespace, device: str) -> torch.dtype:
    half = device.startswith("cuda") and not args.no_amp
    return torch.bfloat16 if args.bf16 else torch.float16 if half else torch.float32


def chosen_stage(args: argparse.Namespace, device: torch.device) -> type[Stage]:
    """Return --stage, or the newest of the family that --paged-attn chooses; one left out is named on stderr."""
    stages = chosen_stages(None)
    first_paged = stages.index(stages_package().BlockTable)  # the stages from there on are
    if args.stage is not None:
        chosen = chosen_stages(args.stage, flag="--stage")
        if len(chosen) != 1:
            raise ValueError(f"--stage {args.stage}: must be one stage")
        if args.paged_attn and chosen[0] in stages[:first_paged]:
            raise ValueError(f"--stage {args.stage}: has no paged attention, leave out --paged-attn")
        return chosen[0]
    for stage in reversed(stages[first_paged:] if args.paged_attn else stages[:first_paged]):
        reason = stage.why_untimed(device)
        if reason is None:
            return stage
        print(f"{stage.name} left out: {reason} (--stage {stage.name} runs it all the same)", file=sys.stderr)
    raise ValueError(f"no stage can be measured on {device}")


def profiled(args: argparse.Namespace, serve_one: Serve) -> list[ServerRun]:
    result, trace = serve_one(profile=True)
    assert trace is not None, "a profiled run has a trace"
    path = args.profile_dir / f"{MODE}_decode.json"
    trace.save(path)
    print("\n".join([*run_lines(result), f"[profile] wrote: {path}"]), flush=True)
    return [result]


def repeated(args: argparse.Namespace, serve_one: Serve) -> list[ServerRun]:
    def on_run(mode: str, repeat: int) -> None:
        if sys.stderr.isatty():  # a pipe gets the posts' lines and nothing else
            print(f"{mode}: {phase_of(repeat, args.repeat_runs)}", file=sys.stderr, flush=True)

    taken = interleaved({MODE: serve_one}, args.repeat_runs, args.warmup_runs, on_run)[MODE]
    runs = [run for run, _ in taken]
    print("\n".join(summary_lines(args.warmup_runs, runs)), flush=True)
    return runs


def record(args: argparse.Namespace, stage: type[Stage], model: Model, runs: list[ServerRun]) -> str:
    """Return one line of JSON: arguments, machine, what the metrics mean, each request's and each step's raw times."""
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    summary = [asdict(stat) | {"p50": stat.p50, "mean": stat.mean} for stat in summarize(runs)]
    modes = {MODE: {"summary": summary, "runs": [one.to_dict() for one in runs]}}
    shape = {**asdict(model.config), "dtype": str(model.dtype).removeprefix("torch.")}
    data = {"arguments": arguments, "stage": stage.name, "model": shape, **describe_host(model.device)}
    return json.dumps(data | {"metrics": FIGURES, "modes": modes}, separators=(",", ":"), allow_nan=False)


if __name__ == "__main__":
    sys.exit(main())
