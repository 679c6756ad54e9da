"""The engine's executors: whole batches with steps in turn, and with the next step launched before this one is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from roseinfer.arguments import require_count, require_counts
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.models import Model, load_model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling.clock import device_clock, seconds_of
from roseinfer.profiling.progress import OnProgress, Progress
from roseinfer.sequence import SamplingParams, Sequence

from .interleave import ROWS_OF_WEIGHTS, interleaved, phase_of
from .ladder import random_prompts
from .provenance import describe_host, where

IN_TURN, ONE_BEHIND = "in turn", "one behind"


@dataclass(frozen=True, kw_only=True)
class ExecutorResult(MachineResult):
    """Times of both executors on whole batches.

    rows: one for each batch size, with the seconds of every run of each executor, the tokens a second of the median,
    and whether both gave the same tokens.
    """

    def short_row(self, row: dict[str, Any]) -> dict[str, Any]:
        short = {"batch_size": row["batch_size"], "same_tokens": row["same_tokens"]}
        for name, seconds in row["seconds"].items():
            speeds = [row["tokens"] / one for one in seconds]
            short[name] = {"tokens_per_second": median(speeds), "min": min(speeds), "max": max(speeds)}
        return short

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        return [executor_table(self.rows).text(width)]

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} in {a['dtype']} on {where(self)}. Tokens a second of {a['repeats']} interleaved runs, "
            f"prompts of {a['prompt_len']} and {a['max_tokens']} new tokens each: the median, and the range."
        ]


def executor_table(rows: List[dict[str, Any]]) -> TextTable:
    columns: list[Column | str] = ["batch", IN_TURN, ONE_BEHIND, Column("ratio", "{:.2f}".format), "same tokens"]
    shown = []
    for row in rows:
        speeds = {name: [row["tokens"] / s for s in row["seconds"][name]] for name in (IN_TURN, ONE_BEHIND)}
        ranges = [f"{median(one):,.0f} ({min(one):,.0f} - {max(one):,.0f})" for one in speeds.values()]
        ratio = median(speeds[ONE_BEHIND]) / median(speeds[IN_TURN])
        shown.append((row["batch_size"], *ranges, ratio, "yes" if row["same_tokens"] else "no"))
    return TextTable.of(columns, shown)


def executors(
    spec: str,
    *,
    batch_sizes: List[int] = (1, 8, 64),
    prompt_len: int = 8,
    max_tokens: int = 64,
    repeats: int = 5,
    dtype: str = "float32",
    device: str = "cpu",
    on_progress: OnProgress | None = None,
) -> ExecutorResult:
    """Time both executors of the engine on the same batches. Raises ValueError for a bad argument."""
    for name, value in (("prompt_len", prompt_len), ("max_tokens", max_tokens), ("repeats", repeats)):
        require_count(name, value, at_least=1)
    require_counts("batch_sizes", batch_sizes)
    model = load_model(spec, device=torch.device(device), dtype=getattr(torch, dtype))
    return ExecutorResult(
        arguments={
            "model": spec,
            "batch_sizes": list(batch_sizes),
            "prompt_len": prompt_len,
            "max_tokens": max_tokens,
            "repeats": repeats,
            "dtype": dtype,
            "device": device,
        },
        **describe_host(torch.device(device)),
        rows=list(executor_rows(model, batch_sizes, prompt_len, max_tokens, repeats, on_progress)),
    )


def executor_rows(
    model: Model,
    batch_sizes: List[int],
    prompt_len: int,
    max_tokens: int,
    repeats: int,
    on_progress: OnProgress | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one row per batch size: both executors in turn on the same prompts, after a warm-up run of each."""
    model = prepared_copy(model)
    work = {name: (1 + repeats) * sum(map(run_work, batch_sizes)) for name in (IN_TURN, ONE_BEHIND)}
    progress = Progress(on_progress, work, runs_total=2 * (1 + repeats) * len(batch_sizes))
    for size in batch_sizes:
        prompts = random_prompts(model, size, prompt_len)
        engines = {
            name: Engine(
                model,
                num_blocks=size * -(-(prompt_len + max_tokens) // BLOCK_SIZE),
                max_num_seqs=size,
                enable_prefix_caching=False,
                async_scheduling=name == ONE_BEHIND,
            )
            for name in (IN_TURN, ONE_BEHIND)
        }
        for engine in engines.values():
            engine.warm_up()
        runs = {name: partial(timed, engine, prompts, max_tokens) for name, engine in engines.items()}

        def on_run(name: str, repeat: int, size: int = size) -> None:
            progress.begin(f"batch {size}, {phase_of(repeat, repeats)}", name, run_work(size), repeat)

        taken = interleaved(runs, repeats, warmup=1, on_run=on_run)
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
