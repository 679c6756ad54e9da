"""The engine's executors: whole batches with steps in turn, and with the next step launched before this one is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.engine.engine import Engine
from roseinfer.models import load_model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling.progress import OnProgress

from .interleave import race
from .ladder import random_prompts
from .online import serve
from .provenance import describe_host, where
from .settings import Executors, blocks_of
from .workload import batch_of

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
    """Time both executors of the engine on the same batches, all in turn, after a warm-up run of each."""
    model = prepared_copy(load_model(setting.model, device=setting.device, dtype=getattr(torch, setting.dtype)))
    most, max_tokens = max(setting.batch_sizes), setting.max_tokens
    runs = {}
    for name in (IN_TURN, ONE_BEHIND):
        engine = Engine(
            model,
            num_blocks=blocks_of(most, setting.prompt_len + max_tokens),
            max_num_seqs=most,
            enable_prefix_caching=False,
            async_scheduling=name == ONE_BEHIND,
        )
        engine.warm_up()
        for size in setting.batch_sizes:
            work = batch_of(random_prompts(model, size, setting.prompt_len), max_tokens)
            runs[f"batch {size}, {name}"] = partial(serve, engine, work)
    taken = race(runs, setting.repeats, on_progress)
    rows = []
    for size in setting.batch_sizes:
        both = {name: taken[f"batch {size}, {name}"] for name in (IN_TURN, ONE_BEHIND)}
        outputs = [run.outputs for own in both.values() for run in own]
        rows.append(
            {
                "batch_size": size,
                "tokens": size * max_tokens,
                "seconds": {name: [run.seconds for run in own] for name, own in both.items()},
                "same_tokens": all(tokens == outputs[0] for tokens in outputs),
            }
        )
    return ExecutorResult(arguments=setting.record(), **describe_host(model.device), rows=rows)
