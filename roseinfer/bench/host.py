"""What the host does in a decode step of the engine beside the model: schedule, prepare, commit, detokenise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from statistics import median
from typing import Any, ClassVar

from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.engine.config import STEP_TOKENS
from roseinfer.llm.llm import LLM
from roseinfer.models import model_config
from roseinfer.profiling.progress import OnProgress
from roseinfer.profiling.span_times import SpanTimes, TimedSpan
from roseinfer.profiling.spans import listening
from roseinfer.sequence import SamplingParams

from .contenders import require_fit
from .interleave import race
from .ladder import random_prompts
from .provenance import describe_host, where
from .settings import Host

SPAN = "roseinfer.engine."
HOST, MODEL = ("schedule", "prepare", "commit", "detokenise"), ("forward", "sample")

SHOWN = ("schedule", "prepare", "commit", "planning", "detokenise", "rest", "step")

Step = dict[str, float]


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}"


@dataclass(frozen=True, kw_only=True)
class HostResult(MachineResult):
    """Times of the host's work in the engine's decode steps.

    rows: one for each batch size, in seconds, each figure the median of the decode steps of all repeats. Beside the
    spans of HOST and MODEL they have planning (schedule, prepare and commit together), step (from one schedule to the
    next) and rest, which no span covers: the loop around the engine, and on a GPU the wait for its tokens. planning_min
    and planning_max are the extremes of all steps. samples: those steps, raw.
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
    COLUMNS: ClassVar = (Column("batch", of="batch_size"), *(Column(f"{name} us", _us, of=name) for name in SHOWN))

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} on {where(self)}. "
            f"Medians of {a['repeats']} x {a['max_tokens'] - 2} decode steps through LLM.generate. planning: schedule, "
            "prepare and commit together; rest: what no span covers, such as the wait for a GPU; step: all of it, "
            "model and sampling included."
        ]


def host_times(setting: Host, on_progress: OnProgress | None = None) -> HostResult:
    """Time the host's share of each decode step of the engine, batch sizes in turn, after a warm-up of each.

    Raises ValueError for prompts and outputs that are too long for the model.
    """
    batch_sizes, max_tokens = setting.batch_sizes, setting.max_tokens
    require_fit(model_config(setting.model), prompt_len=setting.prompt_len, max_tokens=max_tokens)
    # Steps in turn, on a GPU too: only then do a step's parts add up.
    llm = LLM(
        setting.model,
        device=setting.device,
        max_num_seqs=max(batch_sizes),
        max_num_batched_tokens=max(STEP_TOKENS, max(batch_sizes) * setting.prompt_len),  # all prompts fit a step
        async_scheduling=False,
    )
    prompts = random_prompts(llm.model, max(batch_sizes), setting.prompt_len)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    runs = {
        f"batch {size}": partial(
            decode_steps, partial(llm.generate, prompts[:size], params, use_tqdm=False), max_tokens
        )
        for size in batch_sizes
    }
    taken = race(runs, setting.repeats, on_progress)
    steps = {size: list(chain.from_iterable(own)) for size, own in zip(batch_sizes, taken.values(), strict=True)}
    samples = [{"batch_size": size, **step} for size, own in steps.items() for step in own]
    rows = [_row(size, own) for size, own in steps.items()]
    return HostResult(arguments=setting.record(), **describe_host(llm.model.device), rows=rows, samples=samples)


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
