"""Benchmarks: offline batches against other engines, requests by the clock, memory, host time, attention kernels.

`roseinfer bench BENCHMARK --help` tells more.
"""

from __future__ import annotations

import argparse
import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from roseinfer.bench.settings import (
    OF_CONTENDERS,
    OF_ONE_SERVER,
    OFFLINE,
    Chunks,
    DecodeStep,
    Executors,
    Host,
    Kernels,
    Memory,
    Offline,
    Online,
    Serve,
)
from roseinfer.cli.command import no_file
from roseinfer.cli.flags import add_flags, settings_of
from roseinfer.cli.output import LAST_LINE, add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.repository import chosen_stages
from roseinfer.planning.definitions import definitions_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roseinfer.bench.offline import OfflineResult
    from roseinfer.display.measured import Measured

T = TypeVar("T")
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
    "roseinfer bench step --model random:gpt2 --dtype bfloat16",
    "roseinfer bench kernels",
)
LONG = {
    "offline": "one long table: ranges, verdicts, floors, share of equal tokens",
    "online": "one more table: p50, p90, p99 and the largest of every time",
}
RECORDED = "run nothing: show what --output wrote to this file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(benchmark=lambda args: parser.print_help())
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", title="benchmarks")
    for settings, run_it in (
        (Offline, offline),
        (Online, online),
        (Serve, serve),
        (Chunks, chunks),
        (Memory, memory),
        (Host, host),
        (Executors, executors),
        (DecodeStep, step),
        (Kernels, kernels),
    ):
        name, about = run_it.__name__, inspect.getdoc(settings) or ""
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
    from roseinfer.bench.offline import offline

    names, stages = [[one for one in s.contenders if (one in OFFLINE) is known] for known in (True, False)]
    if chart and ("hf" not in names or "float32" not in s.precisions):
        raise ValueError("--chart: its bars are set against hf in float32, so --contenders and --dtype must have them")
    require_fit("--batch-sizes", max(s.batch_sizes), s.longest, s)
    classes = chosen_stages(",".join(stages), "--contenders") if stages else []
    with shown_progress() as on_progress:
        return offline(replace(s, contenders=names), classes, on_progress)


def require_fit(flag: str, num_seqs: int, num_tokens: int, s: Any, dtype: str = "float32") -> None:
    """Raise ValueError, naming the flag, if the engine for these sequences does not fit the settings' device."""
    from roseinfer.cli.memory_check import require_memory

    require_memory(flag, num_seqs, num_tokens, model=s.model, dtype=dtype, device=s.device)


def measured(benchmark: Callable[..., T], s: Any) -> T:
    """Run a benchmark on its settings, with progress."""
    with shown_progress() as on_progress:
        return benchmark(s, on_progress=on_progress)


def online(args: argparse.Namespace) -> None:
    s = settings_of(Online, args)
    from roseinfer.bench.online import latency_chart, online

    longest = max(arrival.prompt_len + arrival.output_len for arrival in s.arrivals(None))
    require_fit("--max-num-seqs", s.max_num_seqs, longest, s, s.dtype)
    result = measured(online, s)
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
        result = loaded(s, on_progress)
    show(args, result, lambda path: serving_chart(result).save(path))
    [row] = result.rows
    if row["failed"]:
        raise Failed(f"{row['failed']} of {row['requests']} requests failed")


def changed_flags(s: Serve, names: Sequence[str]) -> Iterator[tuple[str, object]]:
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
    with shown_progress("starting the servers") as on_progress:
        result = contest(s, on_progress)
    show(args, result)


def chunks(args: argparse.Namespace) -> None:
    s = settings_of(Chunks, args)
    from roseinfer.bench.online import chunks

    require_fit("--decoding", s.num_decoding, s.prompt_len, s)
    show(args, measured(chunks, s))


def memory(args: argparse.Namespace) -> None:
    s = settings_of(Memory, args)
    from roseinfer.bench.offline import peak_memory
    from roseinfer.cli.memory_check import require_memory

    num_tokens = s.prompt_len + s.max_tokens
    require_memory("--batch-size", s.batch_size, num_tokens, model=s.model, dtype=s.dtype, device="cpu")
    with shown_progress("one batch in a process of its own"):
        peak = peak_memory(s)
    show(args, peak)


def host(args: argparse.Namespace) -> None:
    s = settings_of(Host, args)
    from roseinfer.bench.host import host_times

    require_fit("--batch-sizes", max(s.batch_sizes), s.prompt_len + s.max_tokens, s)
    show(args, measured(host_times, s))


def executors(args: argparse.Namespace) -> None:
    s = settings_of(Executors, args)
    from roseinfer.bench.executors import executors as executor_times

    require_fit("--batch-sizes", max(s.batch_sizes), s.prompt_len + s.max_tokens, s, s.dtype)
    show(args, measured(executor_times, s))


def step(args: argparse.Namespace) -> None:
    s = settings_of(DecodeStep, args)
    from roseinfer.bench.decode_step import decode_steps
    from roseinfer.cli.memory_check import require_memory

    for model in s.models:
        require_memory("--batch-sizes", max(s.batch_sizes), s.context + 1, model=model, dtype=s.dtype, device=s.device)
    with shown_progress("one step of each batch size"):
        result = decode_steps(s)
    show(args, result)


def kernels(args: argparse.Namespace) -> None:
    from roseinfer.bench.kernel_times import kernel_times

    with shown_progress("one launch of each shape"):
        result = kernel_times(settings_of(Kernels, args).device)
    show(args, result)
