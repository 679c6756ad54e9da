"""python -m roseinfer.benchmark_scheduler: the posts' own command line and output lines."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from roseinfer.bench.scheduler import ServerRun, Workload
    from roseinfer.bench.scheduler.workload import Encode
    from roseinfer.models import Model
    from roseinfer.profiling import Trace
    from roseinfer.stage import Stage

BAD_ARGUMENT, INTERRUPTED = 2, 130
SEED = 0
# The first post's checkpoint: GPT-2 small as it was before training. It was never published.
POST_CHECKPOINT, STAND_IN = "gpt2_small_ddp_edu_amp_bf16_init.pt", "random:gpt2"


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0; 2 for a bad argument, in one line; 130 for Ctrl-C."""
    args = parser().parse_args(argv)
    try:
        run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_ARGUMENT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m roseinfer.benchmark_scheduler",
        description="Serve requests that all arrive at once, as the posts' benchmark does, and print its lines.",
        epilog=definitions(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    model = p.add_mutually_exclusive_group(required=True)
    model.add_argument("--hf-model-id", metavar="MODEL", help="tiny, random:gpt2, a local folder or a hub id")
    model.add_argument(
        "--checkpoint-path", metavar="MODEL",
        help=f"a model as above; {POST_CHECKPOINT}, which only the first post's author has, stands for {STAND_IN}, "
        "which is the same shape, untrained as well",
    )  # fmt: skip
    p.add_argument("--tokenizer-name", metavar="MODEL", help="whose tokenizer to use (default: the model's own)")
    p.add_argument("--device", help="cpu, cuda, ... (default: cuda where there is one)")
    dtype = p.add_mutually_exclusive_group()
    dtype.add_argument("--bf16", action="store_true", help="weights in bfloat16, not in float16 (GPU) or float32 (CPU)")
    dtype.add_argument("--no-amp", action="store_true", help="weights in float32 on a GPU too")
    p.add_argument("--stage", help="such as s03; what runs if not given: see --paged-attn")
    p.add_argument(
        "--paged-attn", action="store_true",
        help="the newest stage with paged attention whose times mean something on this device; without it the newest "
        "that gathers a dense batch",
    )  # fmt: skip

    prompts = p.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", help="the prompt of every request")
    prompts.add_argument("--prompts", nargs="+", metavar="PROMPT", help="one request for each of these")
    p.add_argument("--num-requests", type=int, help="requests with that --prompt (default: 16)")
    p.add_argument("--max-new-tokens", type=int, default=100, help="tokens of a request at most (default: %(default)s)")
    p.add_argument("--no-stop-on-eos", action="store_true", help="go on to --max-new-tokens after an end token")
    p.add_argument("--pretok", action="store_true", help="encode all prompts before the clock starts")
    p.add_argument("--do-sample", action="store_true", help="draw tokens; greedy without it")
    p.add_argument("--temperature", type=float, default=1.0, help="when drawing (default: %(default)s)")
    p.add_argument("--top-k", type=int, default=0, help="when drawing: 0 keeps all (default)")
    p.add_argument("--top-p", type=float, default=1.0, help="when drawing: 1 keeps all (default)")

    p.add_argument(
        "--mode", default="online", choices=("naive", "online", "offline", "all"),
        help="online (default): prefill each request as it is added, then decode --max-batch-size of them a step, in "
        "turn; offline: decode all of them in every step; naive: one request after another",
    )  # fmt: skip
    p.add_argument("--max-batch-size", type=int, default=8, help="sequences a step, online (default: %(default)s)")
    p.add_argument("--no-prefix-cache", action="store_true", help="no effect: there is no prefix cache yet")
    p.add_argument("--warmup-runs", type=int, default=1, help="runs before those that are measured (default: 1)")
    p.add_argument("--repeat-runs", type=int, default=3, help="measured runs (default: 3); of several modes in turn")
    p.add_argument("--print-per-run", action="store_true", help="print each measured run as well as the summary")
    p.add_argument(
        "--profile", action="store_true",
        help="one run of each mode, printed whole, without warm-up; a trace of three decode steps, after one that is "
        "not profiled and two to warm up, is written to <profile-dir>/<mode>_decode.json",
    )  # fmt: skip
    p.add_argument("--profile-dir", type=Path, default=Path("profiles"), help="where traces go (default: %(default)s)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write arguments, machine and every raw time there")
    return p


def definitions() -> str:
    from roseinfer.bench.scheduler.definitions import METRICS

    fill = textwrap.TextWrapper(width=110, initial_indent="  ", subsequent_indent="      ").fill
    return "\n".join(["what is printed:", *(fill(f"{name}: {text}.") for name, text in METRICS.items())])


def run(args: argparse.Namespace) -> None:
    """Raises ValueError for a bad argument, OSError when a file cannot be written."""
    import torch

    from roseinfer.bench.scheduler import MODES

    check(args)
    spec = model_spec(args)
    model = load(args, spec, args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    stage = chosen_stage(args, model.device)
    requests = workload(args, spec, model)
    modes = MODES if args.mode == "all" else (args.mode,)
    runs = (profiled if args.profile else repeated)(args, modes, stage, model, requests)
    if args.json:
        args.json.write_text(record(args, stage, model, runs) + "\n", encoding="utf-8")


def check(args: argparse.Namespace) -> None:
    from roseinfer.arguments import require_count

    if args.prompts and args.num_requests is not None:
        raise ValueError(f"--num-requests={args.num_requests}: --prompts already says how many, give one of the two")
    for name, least in (("max_batch_size", 1), ("warmup_runs", 0), ("repeat_runs", 1)):
        require_count(f"--{name.replace('_', '-')}", getattr(args, name), at_least=least)
    if args.num_requests is not None:
        require_count("--num-requests", args.num_requests, at_least=1)
    if args.json and (args.json.is_dir() or not args.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {args.json}: must be a file in a folder that exists")


def model_spec(args: argparse.Namespace) -> str:
    spec = args.hf_model_id or args.checkpoint_path
    if Path(spec).name != POST_CHECKPOINT:
        return spec
    print(f"{spec}: {STAND_IN} stands for it, the same shape and as untrained", file=sys.stderr)
    return STAND_IN


def load(args: argparse.Namespace, spec: str, device: str) -> Model:
    import torch

    from roseinfer.models import load_model

    half = device.startswith("cuda") and not args.no_amp
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if half else torch.float32
    return load_model(spec, device=device, dtype=dtype)


def chosen_stage(args: argparse.Namespace, device: torch.device) -> type[Stage]:
    """--stage, or the newest of the family that --paged-attn chooses; one left out is named on stderr."""
    from roseinfer.cli.ladder import chosen_stages

    every = chosen_stages(None)
    first_paged = importlib.import_module("stages").BlockTable
    if args.stage:
        chosen = chosen_stages(args.stage, flag="--stage")
        if len(chosen) != 1:
            raise ValueError(f"--stage {args.stage}: must be one stage")
        if args.paged_attn and not issubclass(chosen[0], first_paged):
            raise ValueError(f"--stage {args.stage}: has no paged attention, leave out --paged-attn")
        return chosen[0]
    for stage in reversed([stage for stage in every if issubclass(stage, first_paged) == args.paged_attn]):
        reason = stage.why_untimed(device)
        if reason is None:
            return stage
        print(f"{stage.name} left out: {reason} (--stage {stage.name} runs it all the same)", file=sys.stderr)
    raise ValueError(f"no stage can be measured on {device}")


def workload(args: argparse.Namespace, spec: str, model: Model) -> Workload:
    from roseinfer.bench.scheduler import make_workload
    from roseinfer.sequence import SamplingParams

    params = SamplingParams(
        max_tokens=args.max_new_tokens, temperature=args.temperature if args.do_sample else 0.0, top_k=args.top_k,
        top_p=args.top_p, ignore_eos=args.no_stop_on_eos,
    )  # fmt: skip
    prompts = args.prompts or [args.prompt] * (16 if args.num_requests is None else args.num_requests)
    return make_workload(prompts, encoding(args.tokenizer_name, spec, model), params, args.pretok)


def encoding(tokenizer_name: str | None, spec: str, model: Model) -> Encode:
    """The tokenizer's; random weights do without one, and without the one that was asked for if it is not to be had."""
    from roseinfer.bench.scheduler import words_as_tokens
    from roseinfer.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(tokenizer_name or spec)
    except ValueError as error:
        if not spec.startswith("random:"):
            raise
        reason = f"{error}\n" if tokenizer_name else ""
        print(f"{reason}{spec} runs without a tokenizer: each word of a prompt is one token", file=sys.stderr)
        return words_as_tokens(model.config.vocab_size)
    return lambda text: tokenizer.encode(text).ids


def profiled(
    args: argparse.Namespace, modes: tuple[str, ...], stage: type[Stage], model: Model, requests: Workload
) -> dict[str, list[ServerRun]]:
    from roseinfer.bench.scheduler.output import run_lines

    args.profile_dir.mkdir(parents=True, exist_ok=True)
    runs = {}
    for mode in modes:
        result, trace = serve_once(args, mode, stage, model, requests, profile=True)
        path = args.profile_dir / f"{mode}_decode.json"
        trace.save(path)
        print("\n".join([*run_lines(result), f"[profile] wrote: {path}"]), flush=True)
        runs[mode] = [result]
    return runs


def repeated(
    args: argparse.Namespace, modes: tuple[str, ...], stage: type[Stage], model: Model, requests: Workload
) -> dict[str, list[ServerRun]]:
    """Several modes run in turn (A B A B), so that a slow minute of the machine hits all of them alike."""
    from roseinfer.bench.scheduler.output import run_lines, summary_lines

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
    import torch

    from roseinfer.bench.scheduler import serve

    torch.manual_seed(SEED)  # with --do-sample, every run draws the same tokens
    return serve(mode, stage, model, requests, args.max_batch_size, profile=profile)


def progress(text: str) -> None:
    """Only where somebody is looking: a pipe gets the posts' lines and nothing else."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def record(args: argparse.Namespace, stage: type[Stage], model: Model, runs: dict[str, list[ServerRun]]) -> str:
    """One line of JSON: arguments, machine, what the metrics mean, every request's and every step's raw times."""
    from roseinfer.bench.provenance import describe_host
    from roseinfer.bench.scheduler import summarize
    from roseinfer.bench.scheduler.definitions import METRICS

    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    modes = {
        mode: {
            "summary": [asdict(stat) | {"p50": stat.p50, "mean": stat.mean} for stat in summarize(of_mode)],
            "runs": [asdict(one) for one in of_mode],
        }
        for mode, of_mode in runs.items()
    }
    shape = {**asdict(model.config), "dtype": str(model.dtype).removeprefix("torch.")}
    data = {"arguments": arguments, "stage": stage.name, "model": shape, **describe_host(model.device)}
    return json.dumps(data | {"metrics": METRICS, "modes": modes}, separators=(",", ":"), allow_nan=False)


if __name__ == "__main__":
    sys.exit(main())
