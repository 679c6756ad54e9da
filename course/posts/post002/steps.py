"""Post 002: what a step of the engine does with prompts, and what it hands out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.ladder import random_prompts
from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.profiling.clock import device_clock, seconds_of
from roseinfer.sequence import SamplingParams, Sequence

from ..planned import engine_of
from ..report.content import Ruled, judged, times_here
from ..report.template import Values

PROMPT_LEN, STEPS, REPEATS = 8, 4, 5


def prompts_of(config: PlannedEngine, model: Model) -> list[list[int]]:
    """Make as many prompts as run at a time, of the warm-up's length."""
    return random_prompts(model, config.max_num_seqs, PROMPT_LEN)


def added(engine: Engine, prompts: list[list[int]], max_tokens: int = STEPS) -> list[Sequence]:
    seqs = [Sequence(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)) for prompt in prompts]
    for seq in seqs:
        engine.add(seq)
    return seqs


def warm_up_section(about: Mapping[str, Any], config: PlannedEngine, model: Model) -> Values:
    """Measure the warm-up before all else, because what is made once in a process is not made again."""
    now, prompts = device_clock(model.device), prompts_of(config, model)
    engine = engine_of(config, model)
    warm_up = seconds_of(engine.warm_up, now)
    free_after = engine.blocks.num_free
    added(engine, prompts, 2 + REPEATS)
    step = engine.scheduler.schedule()
    assert step is not None, "the prompts were added"
    slots = engine.runner.prepare(step).slot_mapping
    first, *later = (seconds_of(engine.step, now) for _ in range(2 + REPEATS))
    batch, length = about["prefill_batch_size"], about["warmup_prompt_tokens"]
    return {
        "facts": judged(
            "002",
            {
                "slots for the tokens of the warm-up's prompts": Ruled(int(slots.unique().numel()), batch * length),
                "blocks that are taken after the warm-up": engine.blocks.num_blocks - free_after,
            },
        ),
        "times": times_here(
            {
                "the warm-up": warm_up,
                "the first step after it, a prefill": first,
                "a decode step after it, median": median(later),
            }
        ),
    }


def prefill_section(about: Mapping[str, Any], config: PlannedEngine, model: Model) -> Values:
    batch, now, prompts = about["prefill_batch_size"], device_clock(model.device), prompts_of(config, model)
    engine = engine_of(config, model)

    def prefilled(together: bool) -> tuple[int, float]:
        """Count the steps until all have their first token, and their seconds."""
        before, seconds = engine.metrics.num_steps, 0.0
        for group in [prompts] if together else [[prompt] for prompt in prompts]:
            seqs = added(engine, group)
            while not all(seq.output_ids for seq in seqs):
                seconds += seconds_of(engine.step, now)
            for seq in seqs:
                engine.abort(seq)
        return engine.metrics.num_steps - before, seconds

    taken = interleaved(
        {"together": partial(prefilled, True), "one at a time": partial(prefilled, False)}, REPEATS, warmup=1
    )
    steps = {name: runs[0][0] for name, runs in taken.items()}
    return {
        "facts": judged(
            "002",
            {
                f"steps for the first tokens of {batch} prompts": steps["together"],
                "one prompt at a time, as before": steps["one at a time"],
                "steps that a request waits while others decode": steps_waited(engine_of(config, model), prompts),
            },
        ),
        "times": times_here(
            {
                f"first tokens of {batch} prompts of {PROMPT_LEN}, {name}": median(seconds for _, seconds in runs)
                for name, runs in taken.items()
            }
        ),
    }


def steps_waited(engine: Engine, prompts: list[list[int]]) -> int:
    """Count the steps before the first token of the last prompt, which comes while the others decode."""
    added(engine, prompts[:-1], max_tokens=STEPS)
    engine.step()
    (late,) = added(engine, prompts[-1:])
    before = engine.metrics.num_steps
    while not late.output_ids:
        engine.step()
    return engine.metrics.num_steps - before - 1


def padding_section(about: Mapping[str, Any], config: PlannedEngine, model: Model) -> Values:
    batch, length = about["prefill_batch_size"], about["warmup_prompt_tokens"]
    engine = engine_of(config, model)
    added(engine, prompts_of(config, model))
    engine.step()
    rows = engine.metrics.history[-1].num_tokens
    return {
        "facts": judged(
            "002",
            {f"rows that a prefill of {batch} prompts of {length} tokens computes": Ruled(rows, batch * length)},
        ),
        "rows": [
            *([str(width), batch * width, batch * (width - length)] for width in about["activate_lens"]),
            ["flat", rows, rows - batch * length],
        ],
    }


@torch.inference_mode()
def real_steps(engine: Engine, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return logits [N, V] of a prefill and a few decode steps, and the greedy tokens [N] that the same steps chose."""
    added(engine, prompts)
    logits, tokens = [], []
    while (step := engine.scheduler.schedule()) is not None:
        step_logits, chosen = engine.runner.compute(engine.runner.prepare(step))
        logits.append(step_logits.float().clone())
        tokens.append(chosen.clone())
        engine.scheduler.commit(step, chosen.tolist())
    return torch.cat(logits), torch.cat(tokens)


def greedy_section(config: PlannedEngine, model: Model) -> Values:
    logits, chosen = real_steps(engine_of(config, model), prompts_of(config, model))
    buffer = logits.amax(dim=-1)
    logprobs = torch.log_softmax(logits, dim=-1)
    same = int((chosen == logprobs.argmax(dim=-1)).sum())
    return {
        "num_rows": len(logits),
        "logits_above": int((buffer > 0).sum()),
        "logprobs_above": int((logprobs.amax(dim=-1) > 0).sum()),
        "facts": judged(
            "002",
            {
                "rows whose token, chosen in the step, is the argmax of all logits": same,
                "what output_logprob_shm holds": Ruled(what_it_holds(buffer, logits), "largest logit"),
            },
        ),
    }


def what_it_holds(buffer: Tensor, logits: Tensor) -> str:
    """Tell what a buffer [N] holds of the chosen tokens of logits [N, V]: log-probabilities or the largest logits."""
    if torch.allclose(buffer, torch.log_softmax(logits.float(), dim=-1).amax(dim=-1), atol=1e-5):
        return "log-probability"
    return "largest logit" if torch.equal(buffer, logits.float().amax(dim=-1)) else "neither"
