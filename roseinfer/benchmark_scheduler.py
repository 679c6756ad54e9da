"""python -m roseinfer.benchmark_scheduler: the posts' own command line and output lines."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import torch

from roseinfer.arguments import require_count
from roseinfer.bench.provenance import describe_host
from roseinfer.bench.scheduler import MODES, ServerRun, Workload, serve, summarize
from roseinfer.bench.scheduler.arguments import add_arguments, model_spec, num_requests, workload
from roseinfer.bench.scheduler.definitions import FIGURES
from roseinfer.bench.scheduler.output import run_lines, summary_lines
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

SEED = 0


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
    count, longest = num_requests(args), 1 + args.max_new_tokens  # of a prompt of one token
    allowed = model_config(spec).max_model_len
    if longest > allowed:
        raise ValueError(f"--max-new-tokens {args.max_new_tokens}: allowed: {allowed} tokens with the prompt")
    name = str(dtype).removeprefix("torch.")
    require_memory("--num-requests", count, longest, model=spec, dtype=name, device=device)
    model = load_model(spec, device=device, dtype=dtype)
    stage = chosen_stage(args, model.device)
    requests = workload(args, spec, model)
    modes = MODES if args.mode == "all" else (args.mode,)
    runs = (profiled if args.profile else repeated)(args, modes, stage, model, requests)
    if args.output:
        whole = record(args, stage, model, runs) + "\n"
        if failed := written("--output", args.output, lambda path: path.write_text(whole, encoding="utf-8")):
            raise Failed(*failed)


def check(args: argparse.Namespace) -> None:
    if args.prompts and args.num_requests is not None:
        raise ValueError(f"--num-requests={args.num_requests}: --prompts already says how many, give one of the two")
    for name, least in (("max_batch_size", 1), ("warmup_runs", 0), ("repeat_runs", 1)):
        require_count(f"--{name.replace('_', '-')}", getattr(args, name), at_least=least)
    if args.num_requests is not None:
        require_count("--num-requests", args.num_requests, at_least=1)
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


def profiled(
    args: argparse.Namespace, modes: tuple[str, ...], stage: type[Stage], model: Model, requests: Workload
) -> dict[str, list[ServerRun]]:
    runs = {}
    for mode in modes:
        result, trace = serve_once(args, mode, stage, model, requests, profile=True)
        assert trace is not None, "a profiled run has a trace"
        path = args.profile_dir / f"{mode}_decode.json"
        trace.save(path)
        print("\n".join([*run_lines(result), f"[profile] wrote: {path}"]), flush=True)
        runs[mode] = [result]
    return runs


def repeated(
    args: argparse.Namespace, modes: tuple[str, ...], stage: type[Stage], model: Model, requests: Workload
) -> dict[str, list[ServerRun]]:
    """Run several modes in turn (A B A B), so that a slow minute of the machine hits all of them alike."""
    runs: dict[str, list[ServerRun]] = {mode: [] for mode in modes}
    for number in range(-args.warmup_runs, args.repeat_runs):
        for mode in modes:
            progress(f"{mode}: {'warm-up' if number < 0 else f'run {number + 1} of {args.repeat_runs}'}")
            result, _ = serve_once(args, mode, stage, model, requests)
            if number < 0:
                continue
            runs[mode].append(result)
            if args.print_per_run:
                print("\n".join(run_lines(result)), flush=True)
    for mode in modes:
        print("\n".join(summary_lines(mode, args.warmup_runs, runs[mode])), flush=True)
    return runs


def serve_once(
    args: argparse.Namespace, mode: str, stage: type[Stage], model: Model, requests: Workload, profile: bool = False
) -> tuple[ServerRun, Trace | None]:
    torch.manual_seed(SEED)  # with --do-sample, every run draws the same tokens
    return serve(
        mode, stage, model, requests, args.max_batch_size, profile=profile, prefix_caching=not args.no_prefix_cache
    )


def progress(text: str) -> None:
    """Show progress only on a terminal: a pipe gets the posts' lines and nothing else."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def record(args: argparse.Namespace, stage: type[Stage], model: Model, runs: dict[str, list[ServerRun]]) -> str:
    """Return one line of JSON: arguments, machine, what the metrics mean, each request's and each step's raw times."""
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    modes = {
        mode: {
            "summary": [asdict(stat) | {"p50": stat.p50, "mean": stat.mean} for stat in summarize(of_mode)],
            "runs": [one.to_dict() for one in of_mode],
        }
        for mode, of_mode in runs.items()
    }
    shape = {**asdict(model.config), "dtype": str(model.dtype).removeprefix("torch.")}
    data = {"arguments": arguments, "stage": stage.name, "model": shape, **describe_host(model.device)}
    return json.dumps(data | {"metrics": FIGURES, "modes": modes}, separators=(",", ":"), allow_nan=False)


if __name__ == "__main__":
    sys.exit(main())
