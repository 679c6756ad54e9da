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

from ..data import COMPUTED, Source, source_of
from ..planned import engine_of
from ..report.content import Time, judge, judge_claim
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
        "batch": batch,
        "length": length,
        "slots": about["warmup_slots"],
        "facts": [
            judge_claim(
                about,
                "warmup_slots",
                "slots for the tokens of the warm-up's prompts",
                int(slots.unique().numel()),
                rule=batch * length,
                why="a slot for each token",
            ),
            judge(
                "blocks that are taken after the warm-up",
                0,
                engine.blocks.num_blocks - free_after,
                source=Source(COMPUTED, "its warm-up has no request to hold any"),
            ),
        ],
        "times": [
            Time("the warm-up", "ms", None, 1e3 * warm_up),
            Time("the first step after it, a prefill", "ms", None, 1e3 * first),
            Time("a decode step after it, median", "ms", None, 1e3 * median(later)),
        ],
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
        "facts": [
            judge_claim(
                about, "claims.prefill_steps", f"steps for the first tokens of {batch} prompts", steps["together"]
            ),
            judge(
                "one prompt at a time, as before",
                batch,
                steps["one at a time"],
                source=Source(COMPUTED, f"a prefill for each of {batch} prompts"),
            ),
            judge(
                "steps that a request waits while others decode",
                int(about["batch_waiting_time"]),
                steps_waited(engine_of(config, model), prompts),
                source=source_of(about, "batch_waiting_time"),
            ),
        ],
        "times": [
            Time(
                f"first tokens of {batch} prompts of {PROMPT_LEN}, {name}",
                "ms",
                None,
                1e3 * median(seconds for _, seconds in runs),
            )
            for name, runs in taken.items()
        ],
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
    batch, length, longest = (about[name] for name in ("prefill_batch_size", "warmup_prompt_tokens", "seq_length"))
    engine = engine_of(config, model)
    added(engine, prompts_of(config, model))
    engine.step()
    step = engine.metrics.history[-1]
    return {
        "batch": batch,
        "length": length,
        "facts": [
            judge(
                f"rows that a prefill of {batch} prompts of {length} tokens computes",
                batch * longest,
                step.num_tokens,
                rule=batch * length,
                why="a flat batch has no padding",
                source=Source(COMPUTED, f"its warm-up pads {batch} prompts to {longest:,}"),
            )
        ],
        "rows": [
            *([str(width), batch * width, batch * (width - length)] for width in about["activate_lens"]),
            ["flat", step.num_tokens, step.num_tokens - batch * length],
        ],
    }


@torch.inference_mode()
def real_steps(engine: Engine, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return logits [N, V] of a prefill and a few decode steps, and the greedy tokens [N] that the same steps chose."""
    added(engine, prompts)
    logits, tokens = [], []
    while (step := engine.scheduler.schedule()) is not None:
        step_logits, chosen = engine.runner.step(engine.runner.prepare(step))
        logits.append(step_logits.float().clone())
        tokens.append(chosen.clone())
        engine.scheduler.commit(step, chosen.tolist())
    return torch.cat(logits), torch.cat(tokens)


def greedy_section(about: Mapping[str, Any], config: PlannedEngine, model: Model) -> Values:
    logits, chosen = real_steps(engine_of(config, model), prompts_of(config, model))
    buffer = logits.amax(dim=-1)
    logprobs = torch.log_softmax(logits, dim=-1)
    same = int((chosen == logprobs.argmax(dim=-1)).sum())
    return {
        "num_rows": len(logits),
        "logits_above": int((buffer > 0).sum()),
        "logprobs_above": int((logprobs.amax(dim=-1) > 0).sum()),
        "batch": about["decode_batch_size"],
        "vocab": about["vocab_size"],
        "facts": [
            judge(
                "rows whose token, chosen in the step, is the argmax of all logits",
                len(logits),
                same,
                source=Source(COMPUTED, "all of them: the post chooses the same tokens"),
            ),
            judge_claim(
                about,
                "claims.logprob_buffer",
                "what output_logprob_shm holds",
                what_it_holds(buffer, logits),
                rule="largest logit",
                why="max of the logits, without the logsumexp subtracted",
            ),
        ],
    }


def what_it_holds(buffer: Tensor, logits: Tensor) -> str:
    """Tell what a buffer [N] holds of the chosen tokens of logits [N, V]: log-probabilities or the largest logits."""
    if torch.allclose(buffer, torch.log_softmax(logits.float(), dim=-1).amax(dim=-1), atol=1e-5):
        return "log-probability"
    return "largest logit" if torch.equal(buffer, logits.float().amax(dim=-1)) else "neither"
