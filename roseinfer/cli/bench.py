"""Benchmarks of whole engines: offline batches against other engines, the engine's memory, its host time.

`roseinfer bench BENCHMARK --help` tells more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.clone import chosen_stages
from roseinfer.cli.command import DEVICE, MODEL, device_or_best, require_named, require_writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from roseinfer.bench.offline import OfflineResult

EXAMPLES = (
    "roseinfer bench offline --model random:gpt2 --batch-sizes 1,8 --dtype float32,bfloat16 --quantization int8",
    "roseinfer bench offline --contenders hf,s04,engine,llama.cpp --long --output offline.json",
    "roseinfer bench memory --model random:gpt2 --batch-size 64",
    "roseinfer bench host --batch-sizes 1,8,64",
)
DTYPES = ("float32", "bfloat16", "float16")
CONTENDERS = "hf, engine, ctranslate2, llama.cpp (these two want `make peers`), stages such as s04; no stages when"
OFFLINE = """Whole batches at once, everyone in turn on the same random prompts: prefill to last token, greedily.

Ratios are to Hugging Face's generate in the same run, and the floor of the whole run stands beside each speed. In fp32
wrong tokens fail."""
MEMORY = """The engine's peak of memory for one batch, in a fresh process, against its weights and its pool."""
HOST = """What the host does in a decode step of the engine beside the model: schedule, prepare, commit, detokenise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(benchmark=lambda args: parser.print_help())
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", title="benchmarks")
    for name, about, arguments, run_it in (
        ("offline", OFFLINE, offline_arguments, offline),
        ("memory", MEMORY, memory_arguments, memory),
        ("host", HOST, host_arguments, host),
    ):
        own = benchmarks.add_parser(name, help=about.splitlines()[0], description=about)
        arguments(own.add_argument)
        own.set_defaults(benchmark=run_it)


def run(args: argparse.Namespace) -> None:
    """Raises ValueError for a bad argument, and what the benchmarks raise."""
    args.benchmark(args)


def offline_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--contenders", metavar="NAMES", help=f"{CONTENDERS} not given")
    add("--batch-sizes", default="1,8,16,64", metavar="SIZES", help="prompts at once")
    add("--prompt-len", default="8", metavar="LENGTHS", help="tokens of each prompt")
    add("--max-tokens", type=int, default=64, help="new tokens of each prompt")
    add("--dtype", default="float32", metavar="DTYPES", help=f"of {', '.join(DTYPES)}")
    add("--quantization", choices=("int8",), help="weights in 8 bits, too, for those who can")
    add("--repeats", type=int, default=3, help="interleaved runs of each, after a short one for warm-up")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--device", help=DEVICE)
    add("--long", action="store_true", help="one long table: ranges, verdicts, floors, share of equal tokens")
    add("--output", type=Path, metavar="FILE", help="write JSON there: raw samples, host, versions, commit")
    add("--chart", type=Path, metavar="FILE", help="draw it there: .png, .svg or .pdf")
    add("--recorded", type=Path, metavar="FILE", help="run nothing: show what --output wrote to this file")


def offline(args: argparse.Namespace) -> None:
    for flag in ("output", "chart"):
        require_writable(f"--{flag}", getattr(args, flag))
    from roseinfer.display.cells import terminal_width

    result = recorded_race(args.recorded) if args.recorded else raced(args)
    try:
        if args.output:
            args.output.write_text(result.to_json() + "\n", encoding="utf-8")
        if args.chart:
            from roseinfer.bench.offline.chart import OfflineChart

            OfflineChart(result).save(args.chart)
    finally:
        print(result.text(terminal_width(), args.long))  # a long run is not lost for a full disk


def recorded_race(path: Path) -> OfflineResult:
    """Raises ValueError for a file that `--output` did not write."""
    from roseinfer.bench.offline import OfflineResult

    try:
        return OfflineResult(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"--recorded: {path} is no race that --output wrote: {error}") from error


def raced(args: argparse.Namespace) -> OfflineResult:
    names, stages = chosen_contenders(args.contenders)
    precisions = [*listed("--dtype", args.dtype, DTYPES), *([args.quantization] if args.quantization else [])]
    batch_sizes, prompt_lens = integers("--batch-sizes", args.batch_sizes), integers("--prompt-len", args.prompt_len)
    from roseinfer.bench.offline import offline
    from roseinfer.cli.ladder import progress_bar
    from roseinfer.cli.room import require_room

    device = device_or_best(args.device)
    if batch_sizes and prompt_lens:
        longest = max(prompt_lens) + args.max_tokens
        require_room("--batch-sizes", max(batch_sizes), longest, model=args.model, dtype="float32", device=device)
    with progress_bar() as on_progress:
        return offline(
            args.model, contenders=names, stages=chosen_stages(",".join(stages), "--contenders") if stages else [],
            precisions=precisions, batch_sizes=batch_sizes, prompt_lens=prompt_lens, max_tokens=args.max_tokens,
            repeats=args.repeats, seed=args.seed, device=device, on_progress=on_progress,
        )  # fmt: skip


def memory_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--batch-size", type=int, default=8, help="prompts at once")
    add("--prompt-len", type=int, default=8, help="tokens of each prompt")
    add("--max-tokens", type=int, default=64, help="new tokens of each prompt")
    add("--dtype", default="float32", choices=DTYPES, help="of weights and KV cache")
    add("--quantization", choices=("int8",), help="weights in 8 bits, and the rest in fp32")
    add("--output", type=Path, metavar="FILE", help="write it there, too, as JSON")


def memory(args: argparse.Namespace) -> None:
    require_writable("--output", args.output)
    from roseinfer.bench.offline import MemoryRun, peak_memory

    precision = args.quantization or args.dtype
    peak = peak_memory(MemoryRun(args.model, precision, args.batch_size, args.prompt_len, args.max_tokens))
    if args.output:
        args.output.write_text(peak.to_json() + "\n", encoding="utf-8")
    print(peak.text())


def host_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=f"{MODEL}; without a tokenizer nothing is detokenised")
    add("--batch-sizes", default="1,2,4,8,16,32,64", metavar="SIZES", help="sequences that run at once")
    add("--prompt-len", type=int, default=8, help="tokens of each prompt")
    add("--max-tokens", type=int, default=34, help="steps of a run: the prefill, the last one, and those that count")
    add("--repeats", type=int, default=3, help="interleaved runs of each, after one for warm-up")
    add("--device", help=DEVICE)
    add("--output", type=Path, metavar="FILE", help="write JSON there: raw samples, host, versions, commit")


def host(args: argparse.Namespace) -> None:
    require_writable("--output", args.output)
    batch_sizes = integers("--batch-sizes", args.batch_sizes)
    from roseinfer.bench.host import host_times
    from roseinfer.display.cells import terminal_width

    result = host_times(
        args.model, batch_sizes=batch_sizes, prompt_len=args.prompt_len, max_tokens=args.max_tokens,
        repeats=args.repeats, device=device_or_best(args.device),
    )  # fmt: skip
    if args.output:
        args.output.write_text(result.to_json() + "\n", encoding="utf-8")
    print(result.text(terminal_width()))


def chosen_contenders(spec: str | None) -> tuple[list[str], list[str]]:
    """Those of the library, and whatever else is named, which can only be stages. All of the library's for None."""
    from roseinfer.bench.offline import CONTENDERS

    require_named("--contenders", spec)
    if spec is None:
        return list(CONTENDERS), []
    chosen = [name.strip() for name in spec.split(",")]
    return [name for name in chosen if name in CONTENDERS], [name for name in chosen if name not in CONTENDERS]


def integers(flag: str, text: str) -> list[int]:
    """Of "1,8,64". Raises ValueError, naming the flag."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r}: must be integers with commas between them, such as 1,8,64") from None


def listed(flag: str, text: str, allowed: tuple[str, ...]) -> list[str]:
    """Of "a,b", each one allowed. Raises ValueError, naming the flag."""
    from roseinfer.arguments import unknown_name

    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in allowed:
            raise ValueError(f"{flag}: unknown value {unknown_name(name, allowed)}")
    return chosen
