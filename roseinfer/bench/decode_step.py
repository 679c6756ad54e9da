"""One decode step of the engine: its launches and their times, its time, and how far it is from the least possible."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

import torch
from torch.profiler import schedule

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable
from roseinfer.engine.batch import make_batch
from roseinfer.engine.engine import Engine
from roseinfer.engine.step import Step
from roseinfer.graphs import RecordedGraph, capture
from roseinfer.models import Model, load_model, model_config
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling import decode_floor
from roseinfer.profiling.clock import device_clock, seconds_of, seconds_of_calls
from roseinfer.profiling.floors import PASSES_BUDGET_S, passes
from roseinfer.profiling.traces.capture import record
from roseinfer.profiling.traces.trace import DEVICE_WORK
from roseinfer.sequence import Sequence

from .ladder import random_prompts
from .provenance import describe_host, where
from .settings import DecodeStep

LAUNCH_S = 1.5e-6  # of a kernel in a graph that does next to nothing
COPIED_BYTES = 2**26, 2**30  # far more than a cache holds: of a CPU, of a GPU
NAME_WIDTH = 60
Row = dict[str, Any]


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def _step_us(row: Row) -> str:
    return f"{_us(row['seconds'])} ({_us(row['seconds_min'])} - {_us(row['seconds_max'])})"


def _millions(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f}"


@dataclass(frozen=True, kw_only=True)
class DecodeStepResult(MachineResult):
    """Decode steps of the engine, with what they start and the least that they take.

    copy_bytes_per_s: bytes read and written by the fastest copy of a large buffer on this device. rows: one for each
    model and batch size; seconds is the median of the replays. launches: kernels, on a CPU operations; copies: copies
    and fills of memory, which are not among them. bytes_seconds: the weights once, K and V of the context, at
    copy_bytes_per_s. launch_seconds: LAUNCH_S for each kernel, 0 on a CPU. times_least: seconds over the larger of the
    two. kernels: by name, how many there are and the seconds of all of them together in one profiled replay (None on a
    CPU), the longest first. warm_up_seconds, warm_up_bytes: what all graphs of the engine took to be made, and the
    device memory that they and their kernels hold (None on a CPU). samples: the seconds of each replay.
    """

    SHORT: ClassVar = ("model", "batch_size", "launches", "seconds", "seconds_min", "times_least", "warm_up_seconds")
    COLUMNS: ClassVar = (
        Column("model", of="model"),
        Column("batch", of="batch_size"),
        Column("launches", of="launches"),
        Column("copies", of="copies"),
        Column("step us", _step_us, True, of=lambda row: row),
        Column("bytes us", _us, of="bytes_seconds"),
        Column("launches us", _us, of="launch_seconds"),
        Column("R", "{:.2f}".format, of="times_least"),
        Column("warm-up s", "{:.1f}".format, of="warm_up_seconds"),
        Column("warm-up MB", _millions, of="warm_up_bytes"),
    )
    KERNEL_COLUMNS: ClassVar = (
        Column("kernel", of="name"),
        Column("count", of="count"),
        Column("us", _us, of="seconds"),
        Column("share", "{:.1%}".format, of="share"),
    )

    copy_bytes_per_s: float

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        yield from super().tables(width, long)
        for row in self.rows:
            table = TextTable.of_rows(self.KERNEL_COLUMNS, row["kernels"], self.MISSING).text(width)
            yield f"{row['model']}, batch {row['batch_size']}\n{table}"

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"In {a['dtype']} on {where(self)}; {a['context']} cached tokens in each sequence. Step: the median of "
            f"{a['repeats']} replays, and the range. Bytes: weights once, and K and V of the context, at "
            f"{self.copy_bytes_per_s / 1e9:,.0f} GB/s, which a copy reads and writes here. Launches: "
            f"{1e6 * LAUNCH_S:g} us for each kernel of a GPU; of a CPU's step the operations are counted. R: the step "
            "over the larger of the two. Warm-up: of the whole engine, with a graph for every size."
        ]


def decode_steps(setting: DecodeStep) -> DecodeStepResult:
    """Profile and time the engine's decode step for each model and batch size.

    Raises ValueError for a context that leaves a model no position for the new token.
    """
    for spec in setting.models:
        if setting.context >= (positions := model_config(spec).max_model_len):
            raise ValueError(f"context must be below {positions}, the positions of {spec}, got {setting.context}")
    device = torch.device(setting.device)
    rate = copy_rate(device)
    steps = [step for spec in setting.models for step in steps_of(spec, setting, rate)]
    rows, samples = [row for row, _ in steps], [seconds for _, seconds in steps]
    return DecodeStepResult(
        arguments=setting.record(), **describe_host(device), copy_bytes_per_s=rate, rows=rows, samples=samples
    )


def copy_rate(device: torch.device) -> float:
    """Measure the bytes a second that a device reads and writes together as it copies a large buffer."""
    source = torch.rand(COPIED_BYTES[device.type == "cuda"] // 4, device=device)
    copy = partial(torch.empty_like(source).copy_, source)
    copy()  # its pages are there now
    return 2 * source.nbytes / min(passes(copy, str(device), PASSES_BUDGET_S))


def steps_of(spec: str, setting: DecodeStep, rate: float) -> Iterator[tuple[Row, list[float]]]:
    """Yield the row of each batch size of a model, and its samples. rate: bytes a second that the device moves."""
    num_tokens = setting.context + 1
    model = model_of(spec, setting.device, setting.dtype)
    engine = engine_of(model, max(setting.batch_sizes), num_tokens)
    warm_up_seconds, warm_up_bytes = warmed_up(engine)
    for size in setting.batch_sizes:
        kernels, copies, seconds = measured(engine, size, num_tokens, setting.repeats)
        floor = decode_floor(model.config, [num_tokens] * size, model.dtype)
        num_launches = sum(kernel["count"] for kernel in kernels)
        least = {
            "bytes_seconds": (floor.weight_bytes + floor.kv_bytes) / rate,
            "launch_seconds": LAUNCH_S * num_launches if model.device.type == "cuda" else 0.0,
        }
        row = {
            "model": spec,
            "batch_size": size,
            "launches": num_launches,
            "copies": copies,
            "seconds": median(seconds),
            "seconds_min": min(seconds),
            "seconds_max": max(seconds),
            "weight_bytes": floor.weight_bytes,
            "kv_bytes": floor.kv_bytes,
            **least,
            "times_least": median(seconds) / max(least.values()),
            "warm_up_seconds": warm_up_seconds,
            "warm_up_bytes": warm_up_bytes,
            "kernels": kernels,
        }
        yield row, seconds


def model_of(spec: str, device: str, dtype: str) -> Model:
    """Load a model to time its steps. Random weights are drawn on the device: which ones there are changes no time."""
    return prepared_copy(load_model(spec, device=device, dtype=getattr(torch, dtype), draw_on=device))


def engine_of(model: Model, size: int, num_tokens: int) -> Engine:
    """Make an engine with room for `size` sequences of num_tokens tokens, and random numbers as its KV cache."""
    engine = Engine(
        model,
        num_blocks=size * -(-num_tokens // BLOCK_SIZE),
        max_num_seqs=size,
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    engine.pool.memory.normal_()
    return engine


def warmed_up(engine: Engine) -> tuple[float, int | None]:
    """Warm an engine up; return the seconds and, on a GPU, how much of its memory was taken meanwhile."""
    device = engine.model.device
    if device.type != "cuda":
        return seconds_of(engine.warm_up), None
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    seconds = seconds_of(engine.warm_up, device_clock(device))
    torch.cuda.empty_cache()
    return seconds, free - torch.cuda.mem_get_info(device)[0]


@torch.inference_mode()
def measured(engine: Engine, size: int, num_tokens: int, repeats: int) -> tuple[list[Row], int, list[float]]:
    """Return the kernels of a decode step, how many copies it makes beside them, and the seconds of each replay.

    num_tokens: of each of `size` sequences, the new one included.
    """
    runner, device = engine.runner, engine.model.device
    seqs, replay = prepared(engine, size, num_tokens)
    # 1. List what the step starts.
    if device.type == "cuda":
        kernels, copies = profiled(replay)
    else:
        copies, counts = 0, [("WholeStep", 1)]  # a compiled call, which no recorder sees
        if not runner.whole:
            graph = capture(replay, device)
            assert isinstance(graph, RecordedGraph)
            replay, counts = graph.replay, Counter(graph.operations).most_common()
        kernels = [{"name": name, "count": count, "seconds": None, "share": None} for name, count in counts]
    # 2. Time it, after one replay for warm-up.
    replay()
    seconds = seconds_of_calls(replay, device, repeats)
    for seq in seqs:
        engine.blocks.free(seq.seq_id)
    return kernels, copies, seconds


def prepared(engine: Engine, size: int, num_tokens: int) -> tuple[list[Sequence], Callable[[], object]]:
    """Return `size` sequences that hold blocks for num_tokens tokens, and a call that computes their decode step.

    It is as if all but their last tokens had been computed; no time depends on the values.
    """
    runner = engine.runner
    seqs = [Sequence(prompt) for prompt in random_prompts(engine.model, size, num_tokens)]
    engine.blocks.reserve({seq.seq_id: num_tokens for seq in seqs})
    for seq in seqs:
        seq.num_cached_tokens = num_tokens - 1
    sizes = runner.graphs.sizes if runner.graphs else None
    batch = make_batch(Step(seqs, [1] * size), engine.blocks, runner.inputs, None, sizes)
    runner.receive(batch, engine.blocks.pool.copies)
    return seqs, partial(runner.graphs.run if runner.graphs else runner.compute, batch)


def profiled(replay: Callable[[], object]) -> tuple[list[Row], int]:
    """Return the kernels of one call by name, the longest first, and how many copies and fills it makes beside them."""
    one = schedule(wait=1, warmup=1, active=1, repeat=1)
    return kernels_of(record(replay, calls=3, schedule=one)["traceEvents"])


def kernels_of(events: Iterable[dict[str, Any]]) -> tuple[list[Row], int]:
    """Sort a trace's events into kernels, by name, and the number of copies and fills of memory."""
    work = [event for event in events if event.get("cat") in DEVICE_WORK]
    found = defaultdict(list)
    for event in work:
        if event["cat"] == "kernel":
            found[short_name(event["name"])].append(event["dur"] / 1e6)
    whole = sum(map(sum, found.values()))
    kernels = [
        {"name": name, "count": len(seconds), "seconds": sum(seconds), "share": sum(seconds) / whole}
        for name, seconds in sorted(found.items(), key=lambda pair: -sum(pair[1]))
    ]
    return kernels, len(work) - sum(map(len, found.values()))


def short_name(kernel: str) -> str:
    """Shorten the C++ name of a kernel: without result, namespaces and arguments, cut after NAME_WIDTH characters.

    >>> short_name("void at::native::reduce_kernel<512, 1, at::native::MaxOps<c10::BFloat16> >(at::native::ReduceOp)")
    'reduce_kernel<512, 1, MaxOps<BFloat16> >'
    """
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    name = re.sub(r"\b\w+::", "", name).partition("(")[0].strip()
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}..."
