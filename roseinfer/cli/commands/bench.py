"""Benchmarks: offline batches against other engines, requests by the clock, memory, host time, attention kernels.

`roseinfer bench BENCHMARK --help` tells more.
"""

from __future__ import annotations

import argparse
import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from roseinfer.arguments import require_count
from roseinfer.cli.bench_settings import (
    DTYPES,
    QUANTIZATIONS,
    Chunks,
    Executors,
    Host,
    Kernels,
    Memory,
    Offline,
    Online,
    Serve,
)
from roseinfer.cli.command import device_or_best, no_file
from roseinfer.cli.flags import add_flags, require_known, settings_of
from roseinfer.cli.output import LAST_LINE, add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.repository import chosen_stages, stages_package
from roseinfer.planning.definitions import definitions_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as List

    from roseinfer.bench.offline import OfflineResult
    from roseinfer.display.measured import Measured

T = TypeVar("T")
# Flags of `bench serve` that only one of its two ways has.
OF_ONE_SERVER = ("url", "api_key", "vocab_size", "verify", "cancelled", "malformed", "stream")
OF_CONTENDERS = ("slots", "precision", "repeats")
EXAMPLES = (
    "roseinfer bench offline --model random:gpt2 --batch-sizes 1,8 --dtype float32,bfloat16 --quantization int8,int4",
    "roseinfer bench offline --contenders hf,s04,engine,llama.cpp --long --output offline.json",
    "roseinfer bench offline --contenders engine --speculative ngram --prompts repeating --prompt-len 192",
    "roseinfer bench online --model random:gpt2 --scale 0.01 --chart curves.html",
    "roseinfer bench online --budgets 512,64 --scale 0.02 --prompt-len 16-256 --output-len 16-128 --load 0.8",
    "roseinfer bench serve -X 150 -P 8835 -O ./ -T 10",
    "roseinfer bench serve --contenders engine,llama-server --clients 8 --prompt-len 32 --output-len 64",
    "roseinfer bench chunks --model random:gpt2",
    "roseinfer bench memory --model random:gpt2 --batch-size 64",
    "roseinfer bench host --batch-sizes 1,8,64",
    "roseinfer bench executors --batch-sizes 1,8,64",
    "roseinfer bench kernels",
)
OFFLINE = """Whole batches at once, everyone in turn on the same prompts: prefill to last token, greedily.

Ratios are to Hugging Face's generate in the same run, and the floor of the whole run stands beside each speed. In fp32
wrong tokens fail."""
ONLINE = """Requests that come by the clock while the engine steps: throughput against latency over token budgets.

Post 003's sweep (1,000 requests, 256 tokens in, 16 out, budgets from 1536 to 32) scaled by --scale, all at once unless
--rate, --load or --trace says when they come. Everyone has the same arrivals and prompts, and decodes greedily; in fp32
wrong tokens fail. Ctrl-C ends it between two steps, and what was measured is printed as partial."""
CHUNKS = """What a long prompt does to those that decode: their worst gap between tokens, with chunks and without."""
SERVE = """Load on a server with OpenAI's API, as post 002 has it: requests come by the clock, and wait for no others.

Start one first, such as `roseinfer serve tiny --port 8835`. Post 002's own load, 150 requests a second for 10 seconds,
is -X 150 -T 10. Throughput, latencies, and goodput: complete answers within --ttft-ms and --itl-ms."""
MEMORY = """The engine's peak of memory for one batch, in a fresh process, against its weights and its pool."""
EXECUTORS = """The engine with steps in turn, and with a step launched before the one before it is read, in turn."""
KERNELS = (
    """One launch of the attention kernel that lesson 07 writes (on a CPU: that of lesson 09), over long contexts."""
)
HOST = """What the host does in a decode step of the engine beside the model: schedule, prepare, commit, detokenise."""
LONG = {
    "offline": "one long table: ranges, verdicts, floors, share of equal tokens",
    "online": "one more table: p50, p90, p99 and the largest of every time",
}
RECORDED = "run nothing: show what --output wrote to this file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(benchmark=lambda args: parser.print_help())
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", title="benchmarks")
    for name, about, settings, run_it in (
        ("offline", OFFLINE, Offline, offline),
        ("online", ONLINE, Online, online),
        ("serve", SERVE, Serve, serve),
        ("chunks", CHUNKS, Chunks, chunks),
        ("memory", MEMORY, Memory, memory),
        ("host", HOST, Host, host),
        ("executors", EXECUTORS, Executors, executors),
        ("kernels", KERNELS, Kernels, kernels),
    ):
        defined = f"what the times mean:\n{definitions_text()}" if name in ("online", "chunks") else None
        told = f"{about}\n\n{LAST_LINE}"
        own = benchmarks.add_parser(name, help=about.splitlines()[0], description=told, epilog=defined)
        add_flags(own.add_argument, settings)
        if name in LONG:
            own.add_argument("--long", action="store_true", help=LONG[name])
        if name != "serve":  # which writes both into a folder
            add_output(own.add_argument, with_chart=name in LONG)
        own.set_defaults(benchmark=run_it)
        if name == "offline":
            own.add_argument("--recorded", type=Path, metavar="FILE", help=RECORDED)


def run(args: argparse.Namespace) -> None:
    """Run a benchmark. Raises ValueError for a bad argument, and what the benchmarks raise."""
    if "output" in args:  # not where no benchmark is named, nor for a server
        check_output(args)
    args.benchmark(args)


def offline(args: argparse.Namespace) -> None:
    result = recorded_race(args.recorded) if args.recorded else raced(settings_of(Offline, args), args.chart)

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
    """Read a race that `--output` wrote. Raises ValueError for any other file."""
    from roseinfer.bench.offline import OfflineResult

    try:
        result = OfflineResult(**json.loads(path.read_text(encoding="utf-8")))
        result.text(), result.to_line()
    except OSError as error:
        raise ValueError(f"--recorded {path}: {no_file(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"--recorded {path}: must be what `bench offline --output` wrote") from error
    return result


def raced(s: Offline, chart: Any) -> OfflineResult:
    require_known("--dtype", s.dtypes, DTYPES)
    require_known("--quantization", s.quantization, QUANTIZATIONS)
    precisions = [*s.dtypes, *s.quantization]
    from roseinfer.bench.offline import CONTENDERS, offline

    chosen = CONTENDERS if s.contenders is None else s.contenders
    names, stages = [name for name in chosen if name in CONTENDERS], [name for name in chosen if name not in CONTENDERS]
    if chart and ("hf" not in names or "float32" not in precisions):
        raise ValueError("--chart: its bars are set against hf in float32, so --contenders and --dtype must have them")
    device = checked_device("--batch-sizes", max(s.batch_sizes), max(s.prompt_lens) + s.max_tokens, s, "float32")
    classes = chosen_stages(",".join(stages), "--contenders") if stages else []
    return measured(
        offline,
        s,
        device=device,
        contenders=names,
        stages=classes,
        precisions=precisions,
        speculative=drafting(s),
    )


def drafting(s: Offline) -> dict[str, Any] | None:
    """Return LLM's speculative argument, or None. Raises ValueError for a draft model that no method asks."""
    if s.draft_model is not None and s.speculative != "draft_model":
        raise ValueError(
            f"--draft-model {s.draft_model}: --speculative must name the method with a model, got {s.speculative}"
        )
    if s.speculative is None:
        return None
    require_count("--num-drafts", s.num_drafts, at_least=1)
    own = {"method": s.speculative, "num_tokens": s.num_drafts}
    if s.speculative == "draft_model":
        own |= {"model": s.draft_model} if s.draft_model else {"model": s.model, "quantization": "int8"}
    return own


def checked_device(flag: str, num_seqs: int, num_tokens: int, s: Any, dtype: str) -> str:
    """Return the settings' device, or the best one. Raises ValueError, naming the flag, if the engine does not fit."""
    from roseinfer.cli.memory_check import require_memory

    device = device_or_best(s.device)
    require_memory(flag, num_seqs, num_tokens, model=s.model, dtype=dtype, device=device)
    return device


def keywords_of(call: Callable[..., object], s: Any) -> dict[str, Any]:
    """Collect the keywords of a call that are fields of the settings."""
    taken = inspect.signature(call).parameters
    return {field.name: getattr(s, field.name) for field in fields(s) if field.name in taken}


def measured(benchmark: Callable[..., T], s: Any, **others: Any) -> T:
    """Run a benchmark on its settings, with progress. others: keywords that the settings lack in that form."""
    with shown_progress() as on_progress:
        return benchmark(s.model, on_progress=on_progress, **(keywords_of(benchmark, s) | others))


def online(args: argparse.Namespace) -> None:
    s = settings_of(Online, args)
    from roseinfer.bench.online import CONTENDERS, Workload, latency_chart, online
    from roseinfer.engine.policies import POLICIES

    workload = Workload(**keywords_of(Workload, s) | {"num_requests": num_requests(s)})
    require_known("--contenders", s.contenders, CONTENDERS)
    require_known("--policies", s.policies, tuple(POLICIES))
    longest = max(arrival.prompt_len + arrival.output_len for arrival in workload.arrivals(None))
    device = checked_device("--max-num-seqs", s.max_num_seqs, longest, s, s.dtype)
    result = measured(online, s, device=device, workload=workload)
    show(args, result, (lambda path: latency_chart(result).save(path)) if result.rows else None, long=args.long)
    if result.interrupted:
        raise KeyboardInterrupt("the result is partial")


def serve(args: argparse.Namespace) -> None:
    s = settings_of(Serve, args)
    if s.contenders is not None:
        serve_contest(args, s)
        return
    unused = OF_CONTENDERS if s.url is None else ("port", *OF_CONTENDERS)
    for name, value in changed_flags(s, unused):
        why = "with --url, which has one" if name == "port" else "without --contenders"
        raise ValueError(f"--{name} {value}: changes nothing {why}")
    from roseinfer.bench.serving import serving_chart
    from roseinfer.bench.serving.run import loaded
    from roseinfer.cli.command import Failed, require_folder

    args.output = args.chart = None
    if s.folder:
        require_folder("--output-dir", s.folder)
        args.output, args.chart = s.folder / "serve.json", [s.folder / "serve.html"]
        check_output(args)
    with shown_progress("asking the server") as on_progress:
        url = s.url or f"http://127.0.0.1:{s.port}"
        result = loaded(**keywords_of(loaded, s) | {"url": url, "on_progress": on_progress})
    show(args, result, lambda path: serving_chart(result).save(path))
    [row] = result.rows
    if row["failed"]:
        raise Failed(f"{row['failed']} of {row['requests']} requests failed")


def changed_flags(s: Serve, names: List[str]) -> Iterator[tuple[str, object]]:
    """Yield those of `names` whose values are not the defaults, each with its value."""
    default = Serve()
    yield from ((name, value) for name in names if (value := getattr(s, name)) != getattr(default, name))


def serve_contest(args: argparse.Namespace, s: Serve) -> None:
    """Race servers that are started for it. Raises ValueError for flags of one server alone."""
    from roseinfer.bench.serving.contest import contest
    from roseinfer.cli.command import require_folder

    for name, value in changed_flags(s, OF_ONE_SERVER):
        flag = f"--no-{name}" if value is False else f"--{name.replace('_', '-')} {value}"
        raise ValueError(f"{flag}: not with --contenders, which race servers of their own on whole streams")
    args.output = args.chart = None
    if s.folder:
        require_folder("--output-dir", s.folder)
        args.output = s.folder / "servers.json"
        check_output(args)
    model = s.model or "random:gpt2"
    with shown_progress("starting the servers") as on_progress:
        result = contest(**keywords_of(contest, s) | {"model": model, "on_progress": on_progress})
    show(args, result)


def num_requests(s: Online) -> int:
    """Compute how many of --requests are sent under --scale. Raises ValueError for a bad count or scale."""
    from roseinfer.arguments import require_positive
    from roseinfer.arrivals import MOST_REQUESTS

    require_count("--requests", s.num_requests, at_least=1, at_most=MOST_REQUESTS)
    require_positive("--scale", s.scale)
    most = MOST_REQUESTS / s.num_requests
    if s.scale > most:
        raise ValueError(f"--scale {s.scale:g}: must be at most {most:g}, {MOST_REQUESTS:,} requests")
    return max(1, round(s.scale * s.num_requests))


def chunks(args: argparse.Namespace) -> None:
    s = settings_of(Chunks, args)
    from roseinfer.bench.online import chunks

    device = checked_device("--decoding", s.num_decoding, s.prompt_len, s, "float32")
    show(args, measured(chunks, s, device=device))


def memory(args: argparse.Namespace) -> None:
    s = settings_of(Memory, args)
    from roseinfer.bench.offline import MemoryRun, peak_memory
    from roseinfer.cli.memory_check import require_memory

    num_tokens = s.prompt_len + s.max_tokens
    require_memory("--batch-size", s.batch_size, num_tokens, model=s.model, dtype=s.dtype, device="cpu")
    run = MemoryRun(s.model, s.quantization or s.dtype, s.batch_size, s.prompt_len, s.max_tokens)
    with shown_progress("one batch in a process of its own"):
        peak = peak_memory(run)
    show(args, peak)


def host(args: argparse.Namespace) -> None:
    s = settings_of(Host, args)
    from roseinfer.bench.host import host_times

    device = checked_device("--batch-sizes", max(s.batch_sizes), s.prompt_len + s.max_tokens, s, "float32")
    show(args, measured(host_times, s, device=device))


def executors(args: argparse.Namespace) -> None:
    s = settings_of(Executors, args)
    from roseinfer.bench.executors import executors as executor_times

    device = checked_device("--batch-sizes", max(s.batch_sizes), s.prompt_len + s.max_tokens, s, s.dtype)
    show(args, measured(executor_times, s, device=device))


def kernels(args: argparse.Namespace) -> None:
    from roseinfer.bench.kernel_times import kernel_times

    device = device_or_best(args.device)
    if device.startswith("cuda"):
        kernel = stages_package().s07_triton_paged.paged_attention_triton
    else:
        kernel = stages_package().s09_numba_paged.paged_attention_numba
    with shown_progress("one launch of each shape"):
        result = kernel_times(kernel, device)
    show(args, result)
