"""Benchmarks of whole engines: offline batches against other engines, requests by the clock, memory, host time.

`roseinfer bench BENCHMARK --help` tells more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.clone import chosen_stages
from roseinfer.cli.command import DEVICE, MODEL, device_or_best, require_named, require_writable
from roseinfer.engine.definitions import definitions_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from roseinfer.bench.offline import OfflineResult

EXAMPLES = (
    "roseinfer bench offline --model random:gpt2 --batch-sizes 1,8 --dtype float32,bfloat16 --quantization int8",
    "roseinfer bench offline --contenders hf,s04,engine,llama.cpp --long --output offline.json",
    "roseinfer bench online --model random:gpt2 --scale 0.05 --chart curves.html",
    "roseinfer bench online --budgets 512,64 --requests 64 --prompt-len 16-256 --output-len 16-128 --load 0.8",
    "roseinfer bench chunks --model random:gpt2",
    "roseinfer bench memory --model random:gpt2 --batch-size 64",
    "roseinfer bench host --batch-sizes 1,8,64",
    "roseinfer bench executors --batch-sizes 1,8,64",
)
DTYPES = ("float32", "bfloat16", "float16")
CHARTS = (".html", ".png", ".svg", ".pdf")
CONTENDERS = "hf, engine, ctranslate2, llama.cpp (these two want `make peers`), stages such as s04; no stages when"
OFFLINE = """Whole batches at once, everyone in turn on the same random prompts: prefill to last token, greedily.

Ratios are to Hugging Face's generate in the same run, and the floor of the whole run stands beside each speed. In fp32
wrong tokens fail."""
ONLINE = """Requests that come by the clock while the engine steps: throughput against latency over token budgets.

Post 003's sweep (1,000 requests, 256 tokens in, 16 out, budgets from 1536 to 32) scaled by --scale, all at once unless
--rate, --load or --trace says when they come. Everyone has the same arrivals and prompts, and decodes greedily; in fp32
wrong tokens fail. A table, then one line of JSON without the raw samples, which --output keeps. Ctrl-C ends it between
two steps, and what was measured is printed as partial."""
CHUNKS = """What a long prompt does to those that decode: their worst gap between tokens, with chunks and without."""
MEMORY = """The engine's peak of memory for one batch, in a fresh process, against its weights and its pool."""
EXECUTORS = """The engine with steps in turn, and with a step launched before the one before it is read, in turn."""
HOST = """What the host does in a decode step of the engine beside the model: schedule, prepare, commit, detokenise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(benchmark=lambda args: parser.print_help())
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", title="benchmarks")
    for name, about, arguments, run_it in (
        ("offline", OFFLINE, offline_arguments, offline),
        ("online", ONLINE, online_arguments, online),
        ("chunks", CHUNKS, chunks_arguments, chunks),
        ("memory", MEMORY, memory_arguments, memory),
        ("host", HOST, host_arguments, host),
        ("executors", EXECUTORS, executor_arguments, executors),
    ):
        defined = f"what the times mean:\n{definitions_text()}" if name in ("online", "chunks") else None
        own = benchmarks.add_parser(name, help=about.splitlines()[0], description=about, epilog=defined)
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


def online_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--contenders", default="engine,hf", metavar="NAMES", help="of engine, no-prefix-cache (the engine), hf "
        "(transformers' continuous batching)")  # fmt: skip
    add("--budgets", default="1536,1024,768,512,384,256,128,64,32", metavar="SIZES", help="tokens of a step at most")
    add("--policies", default="fcfs", metavar="NAMES", help="of the engine: fcfs, shortest, longest_output, packed")
    add("--max-num-seqs", type=int, default=64, help="sequences at a time; with a smaller budget as many as it has")
    add("--requests", type=int, default=1000, help="of which --scale is the share that runs")
    add("--scale", type=float, default=0.1, help="1 is all of --requests")
    add("--prompt-len", default="256", metavar="TOKENS", help="of each prompt, or a range such as 16-256")
    add("--output-len", default="16", metavar="TOKENS", help="of each output, or a range")
    add("--prefix-len", type=int, default=0, help="tokens that all prompts begin with, beside their own")
    add("--rate", metavar="RATES", help="requests a second, such as 2,4: a Poisson process")
    add("--load", metavar="SHARES", help="the same, as shares of a capacity that is measured first, such as 0.5,0.8")
    add("--trace", type=Path, metavar="FILE", help='requests with times and lengths of their own, a line of JSON each: '
        '{"seconds": 0.25, "prompt_len": 256, "output_len": 16}')  # fmt: skip
    add("--burst", type=int, default=1, help="requests that come together")
    add("--repeats", type=int, default=3, help="interleaved runs of each, after a short one for warm-up")
    add("--seed", type=int, default=0, help="of lengths, arrivals and prompts")
    add("--dtype", default="float32", choices=DTYPES, help="of weights and KV cache")
    add("--device", help=DEVICE)
    add("--long", action="store_true", help="one more table: p50, p90, p99 and the largest of every time")
    add("--output", type=Path, metavar="FILE", help="write JSON there: raw samples, host, versions, commit")
    add("--chart", type=Path, metavar="FILE", action="append",
        help=f"draw the curves there ({', '.join(CHARTS)}); may be given twice")  # fmt: skip


def online(args: argparse.Namespace) -> None:
    require_writable("--output", args.output)
    for path in args.chart or ():
        require_chart(path)
    budgets = integers("--budgets", args.budgets)
    rates, loads = (numbers(flag, text) for flag, text in (("--rate", args.rate), ("--load", args.load)))
    from roseinfer.arguments import require_count, require_positive
    from roseinfer.bench.online import CONTENDERS, Workload, latency_chart, online
    from roseinfer.cli.ladder import progress_bar
    from roseinfer.cli.room import require_room
    from roseinfer.display.cells import terminal_width
    from roseinfer.engine.policies import POLICIES

    require_count("--requests", args.requests, at_least=1)
    require_positive("--scale", args.scale)
    workload = Workload(
        num_requests=max(1, round(args.scale * args.requests)), prompt_lens=lengths("--prompt-len", args.prompt_len),
        output_lens=lengths("--output-len", args.output_len), prefix_len=args.prefix_len, burst=args.burst,
        seed=args.seed, trace=args.trace,
    )  # fmt: skip
    names = listed("--contenders", args.contenders, CONTENDERS)
    policies = listed("--policies", args.policies, tuple(POLICIES))
    device = device_or_best(args.device)
    longest = max(arrival.prompt_len + arrival.output_len for arrival in workload.arrivals(None))
    require_room("--max-num-seqs", args.max_num_seqs, longest, model=args.model, dtype=args.dtype, device=device)
    with progress_bar() as on_progress:
        result = online(
            args.model, contenders=names, budgets=budgets, policies=policies, max_num_seqs=args.max_num_seqs,
            workload=workload, rates=rates, loads=loads, repeats=args.repeats, dtype=args.dtype, device=device,
            on_progress=on_progress,
        )  # fmt: skip
    try:
        if args.output:
            args.output.write_text(result.to_json() + "\n", encoding="utf-8")
        for path in (args.chart or ()) if result.rows else ():
            latency_chart(result).save(path)
    finally:
        print(result.text(terminal_width(), args.long))  # a long run is not lost for a full disk
        print(result.to_json(with_samples=False))
    if result.interrupted:
        raise KeyboardInterrupt("the result is partial")


def chunks_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--prompt-len", type=int, default=448, help="tokens of the long prompt")
    add("--decoding", type=int, default=8, help="requests that decode when it comes")
    add("--budgets", default="64", metavar="SIZES", help="tokens of a step at most; without chunks runs beside them")
    add("--repeats", type=int, default=5, help="interleaved runs of each, after one for warm-up")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--device", help=DEVICE)
    add("--output", type=Path, metavar="FILE", help="write JSON there: raw samples, host, versions, commit")


def chunks(args: argparse.Namespace) -> None:
    require_writable("--output", args.output)
    budgets = integers("--budgets", args.budgets)
    from roseinfer.bench.online import chunks
    from roseinfer.display.cells import terminal_width

    result = chunks(
        args.model, prompt_len=args.prompt_len, num_decoding=args.decoding, budgets=budgets, repeats=args.repeats,
        seed=args.seed, device=device_or_best(args.device),
    )  # fmt: skip
    try:
        if args.output:
            args.output.write_text(result.to_json() + "\n", encoding="utf-8")
    finally:
        print(result.text(terminal_width()))
        print(result.to_json(with_samples=False))


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


def executor_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--batch-sizes", default="1,8,64", metavar="SIZES", help="sequences that run at once")
    add("--prompt-len", type=int, default=8, help="tokens of each prompt")
    add("--max-tokens", type=int, default=64, help="new tokens of each prompt")
    add("--repeats", type=int, default=5, help="interleaved runs of each, after one for warm-up")
    add("--dtype", default="float32", choices=DTYPES, help="of weights and KV cache")
    add("--device", help=DEVICE)
    add("--output", type=Path, metavar="FILE", help="write JSON there: raw samples, host, versions, commit")


def executors(args: argparse.Namespace) -> None:
    require_writable("--output", args.output)
    batch_sizes = integers("--batch-sizes", args.batch_sizes)
    from roseinfer.bench.executors import executors as executor_times
    from roseinfer.display.cells import terminal_width

    result = executor_times(
        args.model, batch_sizes=batch_sizes, prompt_len=args.prompt_len, max_tokens=args.max_tokens,
        repeats=args.repeats, dtype=args.dtype, device=device_or_best(args.device),
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


def numbers(flag: str, text: str | None) -> list[float]:
    """Of "0.5,2"; none where nothing was given. Raises ValueError, naming the flag."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise ValueError(f"{flag} {text!r}: must be numbers with commas between them, such as 0.5,2") from None


def lengths(flag: str, text: str) -> tuple[int, int]:
    """Of "256", or of "16-256". Raises ValueError, naming the flag."""
    low, _, high = text.partition("-")
    try:
        least, most = int(low), int(high or low)
    except ValueError:
        least, most = 0, 0
    if not 1 <= least <= most:
        raise ValueError(f"{flag} {text!r}: must be a number of tokens, or the least and the most, such as 16-256")
    return least, most


def require_chart(path: Path) -> None:
    """Before a long run. Raises ValueError for a file that could not be drawn."""
    if path.suffix.lower() not in CHARTS:
        raise ValueError(f"--chart {path}: unknown suffix {path.suffix!r}, allowed: {', '.join(CHARTS)}")
    require_writable("--chart", path)


def listed(flag: str, text: str, allowed: tuple[str, ...]) -> list[str]:
    """Of "a,b", each one allowed. Raises ValueError, naming the flag."""
    from roseinfer.arguments import unknown_name

    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in allowed:
            raise ValueError(f"{flag}: unknown value {unknown_name(name, allowed)}")
    return chosen
