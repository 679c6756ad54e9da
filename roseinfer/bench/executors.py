"""Whole batches on engines with other settings: steps in turn or the next one launched early, drafts or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.engine.engine import Engine
from roseinfer.engine.speculation.settings import NGRAM
from roseinfer.models import Model, load_model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling.progress import OnProgress

from .interleave import race
from .ladder import random_prompts
from .online import serve
from .provenance import describe_host, where
from .race import Run
from .settings import Drafts, Executors, blocks_of
from .workload import batch_of

IN_TURN, ONE_BEHIND = "in turn", "one behind"
WITHOUT, WITH_DRAFTS = "without drafts", "with drafts"
CANDIDATES = 8  # texts for each prompt that is wanted
ENDING = 64  # tokens of a text that tell how much it repeats itself
Row = dict[str, Any]


def _speeds(row: Row) -> dict[str, list[float]]:
    """Compute the tokens a second of each run, by executor."""
    return {name: [row["tokens"] / one for one in seconds] for name, seconds in row["seconds"].items()}


def _speed(name: str, row: Row) -> str:
    speeds = _speeds(row)[name]
    return f"{median(speeds):,.0f} ({min(speeds):,.0f} - {max(speeds):,.0f})"


def _ratio(first: str, second: str, row: Row) -> float:
    return median(_speeds(row)[second]) / median(_speeds(row)[first])


def _steps(name: str, row: Row) -> int:
    return row["steps"][name]


def _columns(first: str, second: str, *more: Column) -> tuple[Column, ...]:
    return (
        Column("batch", of="batch_size"),
        Column(first, of=partial(_speed, first)),
        Column(second, of=partial(_speed, second)),
        Column("ratio", "{:.2f}".format, of=partial(_ratio, first, second)),
        *more,
        Column("same tokens", of=lambda row: "yes" if row["same_tokens"] else "no"),
    )


@dataclass(frozen=True, kw_only=True)
class ExecutorResult(MachineResult):
    """Times of both executors on whole batches.

    rows: one for each batch size, with the seconds of every run of each executor, the tokens a second of the median,
    and whether both gave the same tokens.
    """

    COLUMNS: ClassVar = _columns(IN_TURN, ONE_BEHIND)
    PROMPTS: ClassVar = "prompts"

    def short_row(self, row: Row) -> Row:
        short = {"batch_size": row["batch_size"], "same_tokens": row["same_tokens"]}
        for name, speeds in _speeds(row).items():
            short[name] = {"tokens_per_second": median(speeds), "min": min(speeds), "max": max(speeds)}
        return short

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} in {a['dtype']} on {where(self)}. Tokens a second of {a['repeats']} interleaved runs, "
            f"{self.PROMPTS} of {a['prompt_len']} and {a['max_tokens']} new tokens each: the median, and the range."
        ]


@dataclass(frozen=True, kw_only=True)
class DraftResult(ExecutorResult):
    """Times of the engine with drafts and without. steps: of the last run of each."""

    COLUMNS: ClassVar = _columns(
        WITHOUT, WITH_DRAFTS, *(Column(f"steps {name}", of=partial(_steps, name)) for name in (WITHOUT, WITH_DRAFTS))
    )
    PROMPTS: ClassVar = "prompts (the model's own texts that repeat themselves most)"

    def short_row(self, row: Row) -> Row:
        return super().short_row(row) | {"steps": row["steps"]}


def executors(setting: Executors, on_progress: OnProgress | None = None) -> ExecutorResult:
    """Time both executors of the engine on the same batches, all in turn, after a warm-up run of each."""
    engines = {name: {"async_scheduling": name == ONE_BEHIND} for name in (IN_TURN, ONE_BEHIND)}
    host, rows, _ = raced(setting, engines, random_prompts, on_progress)
    return ExecutorResult(arguments=setting.record(), **host, rows=rows)


def drafts(setting: Drafts, on_progress: OnProgress | None = None) -> DraftResult:
    """Time the engine with drafts from the text itself and without, as `executors` does, on prompts that repeat."""
    engines: dict[str, Row] = {WITHOUT: {}, WITH_DRAFTS: {"speculative": {"method": NGRAM}}}
    host, rows, taken = raced(setting, engines, repeating_prompts, on_progress)
    for row in rows:
        row["steps"] = {name: len(runs[-1].steps) for name, runs in taken[row["batch_size"]].items()}
    return DraftResult(arguments=setting.record(), **host, rows=rows)


def repeating_prompts(model: Model, batch_size: int, prompt_len: int) -> list[list[int]]:
    """Let the model go on from random tokens; return those of its texts whose endings repeat the fewest tokens."""
    num_texts = CANDIDATES * batch_size
    engine = Engine(
        model,
        num_blocks=blocks_of(num_texts, 1 + prompt_len),
        max_num_seqs=num_texts,
        enable_prefix_caching=False,
    )
    texts = serve(engine, batch_of(random_prompts(model, num_texts, 1), prompt_len)).outputs
    return sorted(texts, key=lambda text: len({*text[-ENDING:]}))[:batch_size]


def raced(
    setting: Executors,
    engines: dict[str, Row],
    make_prompts: Callable[[Model, int, int], list[list[int]]],
    on_progress: OnProgress | None,
) -> tuple[Row, list[Row], dict[int, dict[str, list[Run]]]]:
    """Race engines with other settings on the same batches: return the host, the rows, and the runs by batch size."""
    model = prepared_copy(load_model(setting.model, device=setting.device, dtype=getattr(torch, setting.dtype)))
    most, max_tokens = max(setting.batch_sizes), setting.max_tokens
    works = {size: batch_of(make_prompts(model, size, setting.prompt_len), max_tokens) for size in setting.batch_sizes}
    runs = {}
    for name, own in engines.items():
        engine = Engine(
            model,
            num_blocks=blocks_of(most, setting.prompt_len + max_tokens),
            max_num_seqs=most,
            enable_prefix_caching=False,
            **own,
        )
        engine.warm_up()
        for size, work in works.items():
            runs[f"batch {size}, {name}"] = partial(serve, engine, work)
    taken = race(runs, setting.repeats, on_progress)
    by_size = {size: {name: taken[f"batch {size}, {name}"] for name in engines} for size in setting.batch_sizes}
    rows = []
    for size, by_name in by_size.items():
        outputs = [run.outputs for own in by_name.values() for run in own]
        rows.append(
            {
                "batch_size": size,
                "tokens": size * max_tokens,
                "seconds": {name: [run.seconds for run in own] for name, own in by_name.items()},
                "same_tokens": all(tokens == outputs[0] for tokens in outputs),
            }
        )
    return describe_host(model.device), rows, by_size
