"""Benchmarks: offline batches against other engines, requests by the clock, memory, host time, attention kernels.

`roseinfer bench BENCHMARK --help` tells more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.command import DEVICE, MODEL, device_or_best, lengths, no_file, require_named
from roseinfer.cli.output import LAST_LINE, add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.repository import chosen_stages, course
from roseinfer.planning.definitions import definitions_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from roseinfer.bench.offline import OfflineResult
    from roseinfer.display.measured import Measured

EXAMPLES = (
    "roseinfer bench offline --model random:gpt2 --batch-sizes 1,8 --dtype float32,bfloat16 --quantization int8",
    "roseinfer bench offline --contenders hf,s04,engine,llama.cpp --long --output offline.json",
    "roseinfer bench online --model random:gpt2 --scale 0.01 --chart curves.html",
    "roseinfer bench online --budgets 512,64 --scale 0.02 --prompt-len 16-256 --output-len 16-128 --load 0.8",
    "roseinfer bench chunks --model random:gpt2",
    "roseinfer bench memory --model random:gpt2 --batch-size 64",
    "roseinfer bench host --batch-sizes 1,8,64",
    "roseinfer bench executors --batch-sizes 1,8,64",
    "roseinfer bench kernels",
)
DTYPES = ("float32", "bfloat16", "float16")
CONTENDERS = "hf, engine, ctranslate2, llama.cpp (these two want `make peers`), stages such as s04; no stages when"
OFFLINE = """Whole batches at once, everyone in turn on the same random prompts: prefill to last token, greedily.

Ratios are to Hugging Face's generate in the same run, and the floor of the whole run stands beside each speed. In fp32
wrong tokens fail."""
ONLINE = """Requests that come by the clock while the engine steps: throughput against latency over token budgets.

Post 003's sweep (1,000 requests, 256 tokens in, 16 out, budgets from 1536 to 32) scaled by --scale, all at once unless
--rate, --load or --trace says when they come. Everyone has the same arrivals and prompts, and decodes greedily; in fp32
wrong tokens fail. Ctrl-C ends it between two steps, and what was measured is printed as partial."""
CHUNKS = """What a long prompt does to those that decode: their worst gap between tokens, with chunks and without."""
MEMORY = """The engine's peak of memory for one batch, in a fresh process, against its weights and its pool."""
EXECUTORS = """The engine with steps in turn, and with a step launched before the one before it is read, in turn."""
KERNELS = (
    """One launch of the attention kernel that lesson 07 writes (on a CPU: that of lesson 09), over long contexts."""
)
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
        ("kernels", KERNELS, kernel_arguments, kernels),
    ):
        defined = f"what the times mean:\n{definitions_text()}" if name in ("online", "chunks") else None
        told = f"{about}\n\n{LAST_LINE}"
        own = benchmarks.add_parser(name, help=about.splitlines()[0], description=told, epilog=defined)
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
    add_output(add, with_chart=True)
    add("--recorded", type=Path, metavar="FILE", help="run nothing: show what --output wrote to this file")


def offline(args: argparse.Namespace) -> None:
    check_output(args)
    result = recorded_race(args.recorded) if args.recorded else raced(args)

    def draw(path: Path) -> None:
        from roseinfer.bench.offline.chart import OfflineChart

        OfflineChart(result).save(path)

    show(args, result, draw, long=args.long)


def show(
    args: argparse.Namespace, result: Measured, draw: Callable[[Path], None] | None = None, long: bool = False
) -> None:
    from roseinfer.display.text_table import terminal_width

    deliver(args, result.text(terminal_width(), long), result.to_line, result.to_json, draw)


def recorded_race(path: Path) -> OfflineResult:
    """Raises ValueError for a file that `--output` did not write."""
    from roseinfer.bench.offline import OfflineResult

    try:
        result = OfflineResult(**json.loads(path.read_text(encoding="utf-8")))
        result.text(), result.to_line()
    except OSError as error:
        raise ValueError(f"--recorded {path}: {no_file(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"--recorded {path}: must be what `bench offline --output` wrote") from error
    return result


def raced(args: argparse.Namespace) -> OfflineResult:
    names, stages = chosen_contenders(args.contenders)
    precisions = [*listed("--dtype", args.dtype, DTYPES), *([args.quantization] if args.quantization else [])]
    batch_sizes, prompt_lens = integers("--batch-sizes", args.batch_sizes), integers("--prompt-len", args.prompt_len)
    from roseinfer.bench.offline import offline
    from roseinfer.cli.memory_check import require_memory

    if args.chart and ("hf" not in names or "float32" not in precisions):
        raise ValueError("--chart: its bars are set against hf in float32, so --contenders and --dtype must have them")
    device = device_or_best(args.device)
    if batch_sizes and prompt_lens:
        longest = max(prompt_lens) + args.max_tokens
        require_memory("--batch-sizes", max(batch_sizes), longest, model=args.model, dtype="float32", device=device)
    with shown_progress() as on_progress:
        return offline(
            args.model,
            contenders=names,
            stages=chosen_stages(",".join(stages), "--contenders") if stages else [],
            precisions=precisions,
            batch_sizes=batch_sizes,
            prompt_lens=prompt_lens,
            max_tokens=args.max_tokens,
            repeats=args.repeats,
            seed=args.seed,
            device=device,
            on_progress=on_progress,
        )


def online_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add(
        "--contenders",
        default="engine,hf",
        metavar="NAMES",
        help="of engine, no-prefix-cache (the engine), hf (transformers' continuous batching)",
    )
    add(
        "--budgets",
        default="1536,512,128,32",
        metavar="SIZES",
        help="tokens of a step at most; post 003 has nine: 1536,1024,768,512,384,256,128,64,32",
    )
    add("--policies", default="fcfs", metavar="NAMES", help="of the engine: fcfs, shortest, longest_output, packed")
    add("--max-num-seqs", type=int, default=64, help="sequences at a time; with a smaller budget as many as it has")
    add("--requests", type=int, default=1000, help="of which --scale is the share that runs")
    add("--scale", type=float, default=0.05, help="1 is all of --requests")
    add("--prompt-len", default="256", metavar="TOKENS", help="of each prompt, or a range such as 16-256")
    add("--output-len", default="16", metavar="TOKENS", help="of each output, or a range")
    add("--prefix-len", type=int, default=0, help="tokens that all prompts begin with, beside their own")
    add("--rate", metavar="RATES", help="requests a second, such as 2,4: a Poisson process")
    add("--load", metavar="SHARES", help="the same, as shares of a capacity that is measured first, such as 0.5,0.8")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="requests with times and lengths of their own, a line of JSON each: "
        '{"seconds": 0.25, "prompt_len": 256, "output_len": 16}',
    )
    add("--burst", type=int, default=1, help="requests that come together")
    add("--repeats", type=int, default=3, help="interleaved runs of each, after a short one for warm-up")
    add("--seed", type=int, default=0, help="of lengths, arrivals and prompts")
    add("--dtype", default="float32", choices=DTYPES, help="of weights and KV cache")
    add("--device", help=DEVICE)
    add("--long", action="store_true", help="one more table: p50, p90, p99 and the largest of every time")
    add_output(add, with_chart=True)


def online(args: argparse.Namespace) -> None:
    check_output(args)
    budgets = integers("--budgets", args.budgets)
    rates, loads = (numbers(flag, text) for flag, text in (("--rate", args.rate), ("--load", args.load)))
    from roseinfer.bench.online import CONTENDERS, Workload, latency_chart, online
    from roseinfer.cli.memory_check import require_memory
    from roseinfer.engine.policies import POLICIES

    workload = Workload(
        num_requests=num_requests(args),
        prompt_lens=lengths("--prompt-len", args.prompt_len),
        output_lens=lengths("--output-len", args.output_len),
        prefix_len=args.prefix_len,
        burst=args.burst,
        seed=args.seed,
        trace=args.trace,
    )
    names = listed("--contenders", args.contenders, CONTENDERS)
    policies = listed("--policies", args.policies, tuple(POLICIES))
    device = device_or_best(args.device)
    longest = max(arrival.prompt_len + arrival.output_len for arrival in workload.arrivals(None))
    require_memory("--max-num-seqs", args.max_num_seqs, longest, model=args.model, dtype=args.dtype, device=device)
    with shown_progress() as on_progress:
        result = online(
            args.model,
            contenders=names,
            budgets=budgets,
            policies=policies,
            max_num_seqs=args.max_num_seqs,
            workload=workload,
            rates=rates,
            loads=loads,
            repeats=args.repeats,
            dtype=args.dtype,
            device=device,
            on_progress=on_progress,
        )
    show(args, result, (lambda path: latency_chart(result).save(path)) if result.rows else None, long=args.long)
    if result.interrupted:
        raise KeyboardInterrupt("the result is partial")


def num_requests(args: argparse.Namespace) -> int:
    """The share of --requests that --scale asks for. Raises ValueError."""
    from roseinfer.arguments import require_count, require_positive
    from roseinfer.arrivals import MOST_REQUESTS

    require_count("--requests", args.requests, at_least=1, at_most=MOST_REQUESTS)
    require_positive("--scale", args.scale)
    most = MOST_REQUESTS / args.requests
    if args.scale > most:
        raise ValueError(f"--scale {args.scale:g}: must be at most {most:g}, {MOST_REQUESTS:,} requests")
    return max(1, round(args.scale * args.requests))


def chunks_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--prompt-len", type=int, default=448, help="tokens of the long prompt")
    add("--decoding", type=int, default=8, help="requests that decode when it comes")
    add("--budgets", default="64", metavar="SIZES", help="tokens of a step at most; without chunks runs beside them")
    add("--repeats", type=int, default=5, help="interleaved runs of each, after one for warm-up")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--device", help=DEVICE)
    add_output(add)


def chunks(args: argparse.Namespace) -> None:
    check_output(args)
    budgets = integers("--budgets", args.budgets)
    from roseinfer.bench.online import chunks
    from roseinfer.cli.memory_check import require_memory

    device = device_or_best(args.device)
    require_memory("--decoding", args.decoding, args.prompt_len, model=args.model, dtype="float32", device=device)
    with shown_progress() as on_progress:
        result = chunks(
            args.model,
            prompt_len=args.prompt_len,
            num_decoding=args.decoding,
            budgets=budgets,
            repeats=args.repeats,
            seed=args.seed,
            device=device,
            on_progress=on_progress,
        )
    show(args, result)


def memory_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--batch-size", type=int, default=8, help="prompts at once")
    add("--prompt-len", type=int, default=8, help="tokens of each prompt")
    add("--max-tokens", type=int, default=64, help="new tokens of each prompt")
    add("--dtype", default="float32", choices=DTYPES, help="of weights and KV cache")
    add("--quantization", choices=("int8",), help="weights in 8 bits, and the rest in fp32")
    add_output(add)


def memory(args: argparse.Namespace) -> None:
    check_output(args)
    from roseinfer.bench.offline import MemoryRun, peak_memory
    from roseinfer.cli.memory_check import require_memory

    num_tokens = args.prompt_len + args.max_tokens
    require_memory("--batch-size", args.batch_size, num_tokens, model=args.model, dtype=args.dtype, device="cpu")
    precision = args.quantization or args.dtype
    run = MemoryRun(args.model, precision, args.batch_size, args.prompt_len, args.max_tokens)
    with shown_progress("one batch in a process of its own"):
        peak = peak_memory(run)
    show(args, peak)


def host_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=f"{MODEL}; without a tokenizer nothing is detokenised")
    add("--batch-sizes", default="1,2,4,8,16,32,64", metavar="SIZES", help="sequences that run at once")
    add("--prompt-len", type=int, default=8, help="tokens of each prompt")
    add("--max-tokens", type=int, default=34, help="steps of a run: the prefill, the last one, and those that count")
    add("--repeats", type=int, default=3, help="interleaved runs of each, after one for warm-up")
    add("--device", help=DEVICE)
    add_output(add)


def host(args: argparse.Namespace) -> None:
    check_output(args)
    batch_sizes = integers("--batch-sizes", args.batch_sizes)
    from roseinfer.bench.host import host_times

    device = roomy_device(args, batch_sizes, "float32")
    with shown_progress() as on_progress:
        result = host_times(
            args.model,
            batch_sizes=batch_sizes,
            prompt_len=args.prompt_len,
            max_tokens=args.max_tokens,
            repeats=args.repeats,
            device=device,
            on_progress=on_progress,
        )
    show(args, result)


def roomy_device(args: argparse.Namespace, batch_sizes: list[int], dtype: str) -> str:
    """The device. Raises ValueError for a batch that does not fit its memory."""
    from roseinfer.cli.memory_check import require_memory

    device, num_tokens = device_or_best(args.device), args.prompt_len + args.max_tokens
    require_memory("--batch-sizes", max(batch_sizes), num_tokens, model=args.model, dtype=dtype, device=device)
    return device


def executor_arguments(add: Callable[..., object]) -> None:
    add("--model", default="tiny", help=MODEL)
    add("--batch-sizes", default="1,8,64", metavar="SIZES", help="sequences that run at once")
    add("--prompt-len", type=int, default=8, help="tokens of each prompt")
    add("--max-tokens", type=int, default=64, help="new tokens of each prompt")
    add("--repeats", type=int, default=5, help="interleaved runs of each, after one for warm-up")
    add("--dtype", default="float32", choices=DTYPES, help="of weights and KV cache")
    add("--device", help=DEVICE)
    add_output(add)


def executors(args: argparse.Namespace) -> None:
    check_output(args)
    batch_sizes = integers("--batch-sizes", args.batch_sizes)
    from roseinfer.bench.executors import executors as executor_times

    device = roomy_device(args, batch_sizes, args.dtype)
    with shown_progress() as on_progress:
        result = executor_times(
            args.model,
            batch_sizes=batch_sizes,
            prompt_len=args.prompt_len,
            max_tokens=args.max_tokens,
            repeats=args.repeats,
            dtype=args.dtype,
            device=device,
            on_progress=on_progress,
        )
    show(args, result)


def kernel_arguments(add: Callable[..., object]) -> None:
    add("--device", help=DEVICE)
    add_output(add)


def kernels(args: argparse.Namespace) -> None:
    check_output(args)
    from roseinfer.bench.kernel_times import kernel_times

    device = device_or_best(args.device)
    if device.startswith("cuda"):
        kernel = course().s07_triton_paged.paged_attention_triton
    else:
        kernel = course().s09_numba_paged.paged_attention_numba
    with shown_progress("one launch of each shape"):
        result = kernel_times(kernel, device)
    show(args, result)


def chosen_contenders(spec: str | None) -> tuple[list[str], list[str]]:
    """Those of the library, and whatever else is named, which can only be stages. All of the library's for None."""
    from roseinfer.bench.offline import CONTENDERS

    require_named("--contenders", spec)
    if spec is None:
        return list(CONTENDERS), []
    chosen = [name.strip() for name in spec.split(",")]
    return [name for name in chosen if name in CONTENDERS], [name for name in chosen if name not in CONTENDERS]


def integers(flag: str, text: str) -> list[int]:
    """Return [1, 8, 64] for "1,8,64". Raises ValueError, naming the flag."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r}: must be integers with commas between them, such as 1,8,64") from None


def numbers(flag: str, text: str | None) -> list[float]:
    """Return [0.5, 2.0] for "0.5,2", and [] for None. Raises ValueError, naming the flag."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise ValueError(f"{flag} {text!r}: must be numbers with commas between them, such as 0.5,2") from None


def listed(flag: str, text: str, allowed: tuple[str, ...]) -> list[str]:
    """Return ["a", "b"] for "a,b", each one allowed. Raises ValueError, naming the flag."""
    from roseinfer.arguments import unknown_name

    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in allowed:
            raise ValueError(f"{flag}: unknown value {unknown_name(name, allowed)}")
    return chosen
