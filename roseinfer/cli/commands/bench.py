"""Benchmarks: offline batches against other engines, requests by the clock, memory, host time, attention kernels.

`roseinfer bench BENCHMARK --help` tells more.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.bench.settings import (
    OF_CONTENDERS,
    OF_ONE_SERVER,
    OFFLINE,
    Chunks,
    DecodeStep,
    Drafts,
    Eager,
    Executors,
    Host,
    Kernels,
    Memory,
    Offline,
    Online,
    Serve,
)
from roseinfer.cli.command import no_file
from roseinfer.cli.flags import add_flags, refuse_changed, settings_of
from roseinfer.cli.output import LAST_LINE, add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.repository import chosen_stages
from roseinfer.planning.definitions import definitions_text

if TYPE_CHECKING:
    from roseinfer.bench.offline import OfflineResult

EXAMPLES = (
    "roseinfer bench offline --model random:gpt2 --batch-sizes 1,8 --dtype float32,bfloat16 --quantization int8,int4",
    "roseinfer bench offline --contenders hf,s04,engine,llama.cpp --long --output offline.json",
    "roseinfer bench online --model random:gpt2 --scale 0.01 --chart curves.html",
    "roseinfer bench online --budgets 512,64 --scale 0.02 --prompt-len 16-256 --output-len 16-128 --load 0.8",
    "roseinfer bench serve -X 150 -P 8835 -O ./ -T 10",
    "roseinfer bench serve --contenders engine,llama-server --clients 8 --prompt-len 32 --output-len 64",
    "roseinfer bench chunks --model random:gpt2",
    "roseinfer bench memory --model random:gpt2 --batch-size 64",
    "roseinfer bench host --batch-sizes 1,8,64",
    "roseinfer bench executors --batch-sizes 1,8,64",
    "roseinfer bench drafts",
    "roseinfer bench eager",
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
    for name, (settings, run_it) in BENCHMARKS.items():
        about = inspect.getdoc(settings) or ""
        defined = f"what the times mean:\n{definitions_text()}" if name in ("online", "chunks") else None
        told = f"{about}\n\n{LAST_LINE}"
        own = benchmarks.add_parser(name, help=about.splitlines()[0], description=told, epilog=defined)
        add_flags(own.add_argument, settings)
        if name in LONG:
            own.add_argument("--long", action="store_true", help=LONG[name])
        if name != "serve":  # which writes both into a folder
            add_output(own.add_argument, with_chart=name in LONG)
        own.set_defaults(benchmark=partial(run_it, settings))
        if name == "offline":
            own.add_argument("--recorded", type=Path, metavar="FILE", help=RECORDED)


def run(args: argparse.Namespace) -> None:
    """Run a benchmark. Raises ValueError for a bad argument, and what the benchmarks raise."""
    if "output" in args:  # not where no benchmark is named, nor for a server
        check_output(args)
    args.benchmark(args)


def plain(
    function: str, flag: str, sizes: Callable[[Any], tuple[int, int]], doing: str | None = None
) -> Callable[[type, argparse.Namespace], None]:
    """Make the run of a benchmark that needs nothing but its settings.

    Args:
        function: its module in roseinfer.bench, a colon, and its name.
        flag: the one to change where the engine does not fit the device.
        sizes: makes the number of sequences and their tokens from the settings.
        doing: what is shown while it runs; None for a benchmark that reports its runs itself.
    """

    def run_it(settings: type, args: argparse.Namespace) -> None:
        s: Any = settings_of(settings, args)
        module, _, name = function.partition(":")
        benchmark = getattr(importlib.import_module(f"roseinfer.bench.{module}"), name)
        require_fit(flag, *sizes(s), s)
        with shown_progress(*filter(None, [doing])) as on_progress:
            result = benchmark(s) if doing else benchmark(s, on_progress)
        deliver(args, result)

    return run_it


def require_fit(flag: str, num_seqs: int, num_tokens: int, s: Any) -> None:
    """Raise ValueError, naming the flag, if the engine for these sequences does not fit the settings' device."""
    from roseinfer.cli.memory_check import require_memory

    asked = {"dtype": getattr(s, "dtype", "float32"), "device": getattr(s, "device", "cpu")}
    for model in getattr(s, "models", None) or [s.model]:
        require_memory(flag, num_seqs, num_tokens, model=model, **asked)


def offline(settings: type[Offline], args: argparse.Namespace) -> None:
    result = recorded_race(args.recorded) if args.recorded else raced(settings_of(settings, args), args.chart)

    def draw(path: Path) -> None:
        from roseinfer.bench.offline.chart import OfflineChart

        OfflineChart(result).save(path)

    deliver(args, result, draw, long=args.long)


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


def online(settings: type[Online], args: argparse.Namespace) -> None:
    s = settings_of(settings, args)
    from roseinfer.bench.online import latency_chart, online

    require_fit("--max-num-seqs", s.max_num_seqs, s.longest.prompt_len + s.longest.output_len, s)
    with shown_progress() as on_progress:
        result = online(s, on_progress)
    deliver(args, result, (lambda path: latency_chart(result).save(path)) if result.rows else None, long=args.long)
    if result.interrupted:
        raise KeyboardInterrupt("the result is partial")


def serve(settings: type[Serve], args: argparse.Namespace) -> None:
    """Load one server, or race those that are started for it. Raises ValueError for flags of the other kind of load."""
    s = settings_of(settings, args)
    refuse_unused(s)
    from roseinfer.bench.serving import serving_chart
    from roseinfer.bench.serving.run import contest, loaded
    from roseinfer.cli.command import Failed, require_folder

    args.output = args.chart = None
    if s.folder:
        require_folder("--output-dir", s.folder)
        args.output = s.folder / ("servers.json" if s.contenders else "serve.json")
        args.chart = None if s.contenders else [s.folder / "serve.html"]
        check_output(args)
    with shown_progress("starting the servers" if s.contenders else "asking the server") as on_progress:
        result: Any = contest(s, on_progress) if s.contenders else loaded(s, on_progress)
    deliver(args, result, lambda path: serving_chart(result).save(path))
    if failed := not s.contenders and result.rows[0]["failed"]:
        raise Failed(f"{failed} of {result.rows[0]['requests']} requests failed")


def refuse_unused(s: Serve) -> None:
    """Raise ValueError for a flag that has no effect on this kind of load."""
    why = dict.fromkeys(OF_CONTENDERS, "changes nothing without --contenders")
    if s.contenders:
        why = dict.fromkeys(OF_ONE_SERVER, "not with --contenders, which race servers of their own on whole streams")
    elif s.url:
        why["port"] = "changes nothing with --url, which has one"
    refuse_changed(s, why)


def kernels(settings: type[Kernels], args: argparse.Namespace) -> None:
    from roseinfer.bench.kernel_times import kernel_times

    with shown_progress("one call for each shape"):
        result = kernel_times(settings_of(settings, args).device)
    deliver(args, result)


def batches(s: Any) -> tuple[int, int]:
    """Return the largest batch of the settings, and the tokens of each of its sequences."""
    return max(s.batch_sizes), s.prompt_len + s.max_tokens


BENCHMARKS: dict[str, tuple[type, Callable[[Any, argparse.Namespace], None]]] = {
    "offline": (Offline, offline),
    "online": (Online, online),
    "serve": (Serve, serve),
    "chunks": (Chunks, plain("online:chunks", "--decoding", lambda s: (s.num_decoding, s.prompt_len))),
    "memory": (
        Memory,
        plain(
            "offline:peak_memory",
            "--batch-size",
            lambda s: (s.batch_size, s.prompt_len + s.max_tokens),
            "one batch in a process of its own",
        ),
    ),
    "host": (Host, plain("host:host_times", "--batch-sizes", batches)),
    "executors": (Executors, plain("executors:executors", "--batch-sizes", batches)),
    "drafts": (Drafts, plain("executors:drafts", "--batch-sizes", batches)),
    "eager": (
        Eager,
        plain(
            "eager:eager",
            "--batch-size",
            lambda s: (s.batch_size + 1, max(s.context + 1 + s.num_drafts, s.prompt_len)),
        ),
    ),
    "step": (
        DecodeStep,
        plain(
            "decode_step:decode_steps",
            "--batch-sizes",
            lambda s: (max(s.batch_sizes), s.context + 1),
            "one step of each batch size",
        ),
    ),
    "kernels": (Kernels, kernels),
}
