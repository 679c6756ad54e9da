"""What the host does in a decode step of the engine beside the model: schedule, prepare, commit, detokenise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.arguments import require_count, require_counts
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable
from roseinfer.engine.config import STEP_TOKENS
from roseinfer.llm.llm import LLM
from roseinfer.profiling.progress import OnProgress, Progress
from roseinfer.profiling.spans import SpanTimes, TimedSpan, listening
from roseinfer.sequence import SamplingParams

from .interleave import interleaved, phase_of
from .ladder import random_prompts
from .provenance import describe_host, where

SPAN = "roseinfer.engine."
HOST, MODEL = ("schedule", "prepare", "commit", "detokenise"), ("forward", "sample")

Step = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class HostResult(MachineResult):
    """Times of the host's work in the engine's decode steps.

    rows: one for each batch size, in seconds, each figure the median of the decode steps of all repeats. Beside the
    spans of HOST and MODEL they have planning (schedule, prepare and commit together), step (from one schedule to the
    next) and rest, which no span covers: the loop around the engine. planning_min and planning_max are the extremes of
    all steps. samples: those steps, raw.
    """

    SHORT: ClassVar = (
        "batch_size",
        "schedule",
        "prepare",
        "commit",
        "planning",
        "planning_min",
        "planning_max",
        "step",
    )

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        shown = ("schedule", "prepare", "commit", "planning", "detokenise", "rest", "step")
        columns = [Column("batch"), *(Column(f"{name} us", lambda s: f"{1e6 * s:,.0f}") for name in shown)]
        table = TextTable.of(columns, [(row["batch_size"], *(row[name] for name in shown)) for row in self.rows])
        return [table.text(width)]

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} on {where(self)}. "
            f"Medians of {a['repeats']} x {a['max_tokens'] - 2} decode steps through LLM.generate. planning: schedule, "
            "prepare and commit together; rest: what no span covers; step: all of it, model and sampling included."
        ]


def host_times(
    spec: str,
    *,
    batch_sizes: List[int] = (1, 8, 64),
    prompt_len: int = 8,
    max_tokens: int = 34,
    repeats: int = 3,
    device: str = "cpu",
    on_progress: OnProgress | None = None,
) -> HostResult:
    """Time the host's share of each decode step of the engine, batch sizes in turn, after a warm-up of each.

    Raises ValueError for a bad argument.
    """
    require_count("prompt_len", prompt_len, at_least=1)
    require_count("max_tokens", max_tokens, at_least=4)  # so that two steps are neither the prefill nor the last
    require_count("repeats", repeats, at_least=1)
    require_counts("batch_sizes", batch_sizes)
    prompts_fit = max(STEP_TOKENS, max(batch_sizes) * prompt_len)
    # Steps in turn, on a GPU too: only then do a step's parts add up.
    llm = LLM(
        spec,
        device=device,
        max_num_seqs=max(batch_sizes),
        max_num_batched_tokens=prompts_fit,
        async_scheduling=False,
    )
    prompts = random_prompts(llm.model, max(batch_sizes), prompt_len)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    runs = {
        size: partial(decode_steps, partial(llm.generate, prompts[:size], params, use_tqdm=False), max_tokens)
        for size in batch_sizes
    }
    progress = Progress(on_progress, dict.fromkeys(map(str, batch_sizes), 1 + repeats), len(runs) * (1 + repeats))
    taken = interleaved(
        runs,
        repeats,
        warmup=1,
        on_run=lambda size, repeat: progress.begin(f"{phase_of(repeat, repeats)}, batch", str(size), repeat=repeat),
    )
    samples = [{"batch_size": size, **step} for size in batch_sizes for steps in taken[size] for step in steps]
    rows = [_row(size, [step for steps in taken[size] for step in steps]) for size in batch_sizes]
    return HostResult(
        arguments={
            "model": spec,
            "batch_sizes": list(batch_sizes),
            "prompt_len": prompt_len,
            "max_tokens": max_tokens,
            "repeats": repeats,
            "device": device,
        },
        **describe_host(torch.device(device)),
        rows=rows,
        samples=samples,
    )


def _row(batch_size: int, steps: list[Step]) -> dict[str, Any]:
    planning = [step["planning"] for step in steps]
    medians = {name: median(step[name] for step in steps) for name in steps[0]}
    return {"batch_size": batch_size, **medians, "planning_min": min(planning), "planning_max": max(planning)}


def decode_steps(generate: Callable[[], object], max_tokens: int) -> list[Step]:
    """Return the decode steps of one call of generate, whose prompts must all fit one prefill.

    The prefill and the last step, in which requests end, are left out.
    """
    names = {SPAN + name: name for name in (*HOST, *MODEL)}
    times = SpanTimes(lambda name, around: name in names)
    with listening(times):
        generate()
    spans = sorted(times.take(), key=lambda span: span.began)
    starts = [i for i, span in enumerate(spans) if span.name == SPAN + "schedule"]
    steps = [(spans[i:j], spans[j].began - spans[i].began) for i, j in pairwise(starts)]
    assert len(starts) == max_tokens, f"{len(starts)} steps for {max_tokens} tokens: prompts did not fit one prefill"
    return [_step(inside, seconds, names) for inside, seconds in steps[1:]]


def _step(spans: list[TimedSpan], seconds: float, names: dict[str, str]) -> Step:
    took = {names[span.name]: span.seconds for span in spans}
    planning = took["schedule"] + took["prepare"] + took["commit"]
    return took | {"planning": planning, "step": seconds, "rest": seconds - sum(took.values())}
