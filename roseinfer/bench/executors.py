"""The engine's executors: whole batches with steps in turn, and with the next step launched before this one is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.models import Model, load_model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling.clock import device_clock, seconds_of
from roseinfer.profiling.progress import OnProgress, Progress
from roseinfer.sequence import SamplingParams, Sequence

from .interleave import ROWS_OF_WEIGHTS, reported
from .ladder import random_prompts
from .provenance import describe_host, where
from .settings import Executors

IN_TURN, ONE_BEHIND = "in turn", "one behind"
Row = dict[str, Any]


def _speeds(row: Row) -> dict[str, list[float]]:
    """Compute the tokens a second of each run, by executor."""
    return {name: [row["tokens"] / one for one in seconds] for name, seconds in row["seconds"].items()}


def _speed(name: str, row: Row) -> str:
    speeds = _speeds(row)[name]
    return f"{median(speeds):,.0f} ({min(speeds):,.0f} - {max(speeds):,.0f})"


def _ratio(row: Row) -> float:
    return median(_speeds(row)[ONE_BEHIND]) / median(_speeds(row)[IN_TURN])


@dataclass(frozen=True, kw_only=True)
class ExecutorResult(MachineResult):
    """Times of both executors on whole batches.

    rows: one for each batch size, with the seconds of every run of each executor, the tokens a second of the median,
    and whether both gave the same tokens.
    """

    COLUMNS: ClassVar = (
        Column("batch", of="batch_size"),
        Column(IN_TURN, of=partial(_speed, IN_TURN)),
        Column(ONE_BEHIND, of=partial(_speed, ONE_BEHIND)),
        Column("ratio", "{:.2f}".format, of=_ratio),
        Column("same tokens", of=lambda row: "yes" if row["same_tokens"] else "no"),
    )

    def short_row(self, row: Row) -> Row:
        short = {"batch_size": row["batch_size"], "same_tokens": row["same_tokens"]}
        for name, speeds in _speeds(row).items():
            short[name] = {"tokens_per_second": median(speeds), "min": min(speeds), "max": max(speeds)}
        return short

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} in {a['dtype']} on {where(self)}. Tokens a second of {a['repeats']} interleaved runs, "
            f"prompts of {a['prompt_len']} and {a['max_tokens']} new tokens each: the median, and the range."
        ]


def executors(setting: Executors, on_progress: OnProgress | None = None) -> ExecutorResult:
    """Time both executors of the engine on the same batches."""
    model = load_model(setting.model, device=setting.device, dtype=getattr(torch, setting.dtype))
    rows = list(executor_rows(prepared_copy(model), setting, on_progress))
    return ExecutorResult(arguments=setting.record(), **describe_host(model.device), rows=rows)


def executor_rows(model: Model, setting: Executors, on_progress: OnProgress | None = None) -> Iterator[dict[str, Any]]:
    """Yield one row per batch size: both executors in turn on the same prompts, after a warm-up run of each."""
    repeats, max_tokens = setting.repeats, setting.max_tokens
    work = {name: (1 + repeats) * sum(map(run_work, setting.batch_sizes)) for name in (IN_TURN, ONE_BEHIND)}
    progress = Progress(on_progress, work, runs_total=2 * (1 + repeats) * len(setting.batch_sizes))
    for size in setting.batch_sizes:
        prompts = random_prompts(model, size, setting.prompt_len)
        engines = {
            name: Engine(
                model,
                num_blocks=size * -(-(setting.prompt_len + max_tokens) // BLOCK_SIZE),
                max_num_seqs=size,
                enable_prefix_caching=False,
                async_scheduling=name == ONE_BEHIND,
            )
            for name in (IN_TURN, ONE_BEHIND)
        }
        for engine in engines.values():
            engine.warm_up()
        runs = {name: partial(timed, engine, prompts, max_tokens) for name, engine in engines.items()}
        taken = reported(progress, runs, repeats, warmup=1, where=f"batch {size}, ", work=run_work(size))
        outputs = [tokens for runs in taken.values() for _, tokens in runs]
        yield {
            "batch_size": size,
            "tokens": size * max_tokens,
            "seconds": {name: [seconds for seconds, _ in runs] for name, runs in taken.items()},
            "same_tokens": all(tokens == outputs[0] for tokens in outputs),
        }


def run_work(batch_size: int) -> int:
    """Estimate how long a run takes, relative to runs of other batch sizes.

    Weights are read once a step, and on a CPU that takes as long as about ROWS_OF_WEIGHTS rows.
    """
    return ROWS_OF_WEIGHTS + batch_size


def timed(engine: Engine, prompts: list[list[int]], max_tokens: int) -> tuple[float, list[list[int]]]:
    """Return the seconds from the first step to the last token, and the tokens."""
    seqs = [Sequence(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)) for prompt in prompts]
    now = device_clock(engine.model.device)
    for seq in seqs:
        engine.add(seq)
    return seconds_of(lambda: list(drive(engine)), now), [seq.output_ids for seq in seqs]
