"""Post 002: what a step of the engine does with prompts, and what it hands out."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.ladder import random_prompts
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.profiling.clock import device_clock, seconds_of
from roseinfer.sequence import SamplingParams, Sequence

from ..data import COMPUTED, Source, source_of
from ..report.content import Grid, Section, Time, judge

PROMPT_LEN, STEPS, REPEATS = 8, 4, 5


def small_engine(config: EngineConfig, model: Model) -> Engine:
    """Without a prefix cache: whoever comes again is computed again. Steps in turn, so that each can be looked at."""
    return Engine(
        model, num_blocks=config.num_blocks, block_size=config.block_size, max_num_seqs=config.max_num_seqs,
        enable_prefix_caching=False, async_scheduling=False,
    )  # fmt: skip


def prompts_of(config: EngineConfig, model: Model) -> list[list[int]]:
    """As many as run at a time, of the warm-up's length."""
    return random_prompts(model, config.max_num_seqs, PROMPT_LEN)


def added(engine: Engine, prompts: list[list[int]], max_tokens: int = STEPS) -> list[Sequence]:
    seqs = [Sequence(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)) for prompt in prompts]
    for seq in seqs:
        engine.add(seq)
    return seqs


def warm_up_section(about: Mapping[str, Any], config: EngineConfig, model: Model) -> Section:
    """Measured first of all: what is made once in a process is not made again."""
    now, prompts = device_clock(model.device), prompts_of(config, model)
    engine = small_engine(config, model)
    warm_up = seconds_of(engine.warm_up, now)
    free_after = engine.blocks.num_free
    added(engine, prompts, 2 + REPEATS)
    seqs, num_new = engine.scheduler.schedule()
    slots = engine.runner.prepare(seqs, num_new).slot_mapping
    first, *later = (seconds_of(engine.step, now) for _ in range(2 + REPEATS))
    batch, length = about["prefill_batch_size"], about["warmup_prompt_tokens"]
    return Section(
        "Warm-up before the first request",
        [
            "The post runs a prefill before the first request, so that what only first calls make is there already. "
            "The engine's warm_up does that and captures its graphs where there is a GPU. It leaves every block free.",
            f"The post's warm-up gives {batch} prompts of {length} tokens, and names {about['warmup_slots']} slots for "
            "them, all in block 0. Their K and V lie over one another or nowhere. For a warm-up that does no harm, "
            "since nobody reads them; the same arrays for real prompts would.",
            "Times are of one run in this process, in which other parts of PyTorch may have been warm before.",
        ],
        facts=[
            judge("slots for the tokens of the warm-up's prompts", about["warmup_slots"], int(slots.unique().numel()),
                  rule=batch * length, why="a slot for each token", source=source_of(about, "warmup_slots")),
            judge("blocks that are taken after the warm-up", 0, engine.blocks.num_blocks - free_after,
                  source=Source(COMPUTED, "its warm-up has no request to hold any")),
        ],
        times=[
            Time("the warm-up", "ms", None, 1e3 * warm_up),
            Time("the first step after it, a prefill", "ms", None, 1e3 * first),
            Time("a decode step after it, median", "ms", None, 1e3 * median(later)),
        ],
    )  # fmt: skip


def prefill_section(about: Mapping[str, Any], config: EngineConfig, model: Model) -> Section:
    batch, now, prompts = about["prefill_batch_size"], device_clock(model.device), prompts_of(config, model)
    engine = small_engine(config, model)

    def prefilled(together: bool) -> tuple[int, float]:
        """Steps until all have their first token, and their seconds."""
        before, seconds = engine.metrics.num_steps, 0.0
        for group in [prompts] if together else [[prompt] for prompt in prompts]:
            seqs = added(engine, group)
            while not all(seq.output_ids for seq in seqs):
                seconds += seconds_of(engine.step, now)
            for seq in seqs:
                engine.abort(seq)
        return engine.metrics.num_steps - before, seconds

    taken = interleaved({name: lambda t=name == "together": prefilled(t) for name in ("together", "one at a time")},
                        REPEATS, warmup=1)  # fmt: skip
    steps = {name: runs[0][0] for name, runs in taken.items()}
    return Section(
        "Several prompts in one prefill",
        [
            "The post's base could decode a batch and prefill one prompt. It adds prefills of a batch. A step of the "
            "engine takes the tokens of as many prompts as its budget has room for, in one flat batch, beside those "
            "that decode.",
            "A request that comes is in the next step: the post's configuration waits for no batch to fill, either.",
        ],
        facts=[
            judge(f"steps for the first tokens of {batch} prompts", about["claims"]["prefill_steps"], steps["together"],
                  source=source_of(about, "claims.prefill_steps")),
            judge("one prompt at a time, as before", batch, steps["one at a time"],
                  source=Source(COMPUTED, f"a prefill for each of {batch} prompts")),
            judge("steps that a request waits while others decode", int(about["batch_waiting_time"]),
                  steps_waited(small_engine(config, model), prompts), source=source_of(about, "batch_waiting_time")),
        ],
        times=[
            Time(f"first tokens of {batch} prompts of {PROMPT_LEN}, {name}", "ms", None,
                 1e3 * median(seconds for _, seconds in runs)) for name, runs in taken.items()
        ],
    )  # fmt: skip


def steps_waited(engine: Engine, prompts: list[list[int]]) -> int:
    """Of the last prompt, which comes while the others decode: steps before the one that gives its first token."""
    added(engine, prompts[:-1], max_tokens=STEPS)
    engine.step()
    (late,) = added(engine, prompts[-1:])
    before = engine.metrics.num_steps
    while not late.output_ids:
        engine.step()
    return engine.metrics.num_steps - before - 1


def padding_section(about: Mapping[str, Any], config: EngineConfig, model: Model) -> Section:
    batch, length, longest = (about[name] for name in ("prefill_batch_size", "warmup_prompt_tokens", "seq_length"))
    engine = small_engine(config, model)
    added(engine, prompts_of(config, model))
    engine.step()
    step = engine.metrics.history[-1]
    widths = [*about["activate_lens"]]
    return Section(
        "Sentence lengths chosen by the batch",
        [
            "The post pads every prompt to seq_length, and chooses a smaller one where the batch allows it. The "
            "engine's batch is flat: it has the tokens of the prompts one after another, and no padding at any length.",
        ],
        facts=[
            judge(f"rows that a prefill of {batch} prompts of {length} tokens computes", batch * longest,
                  step.num_tokens, rule=batch * length, why="a flat batch has no padding",
                  source=Source(COMPUTED, f"its warm-up pads {batch} prompts to {longest:,}"))
        ],
        grids=[
            Grid(
                f"Rows computed for {batch} prompts of {length} tokens",
                ["sentence length", "rows", "of them padding"],
                [*([str(width), batch * width, batch * (width - length)] for width in widths),
                 ["flat", step.num_tokens, step.num_tokens - batch * length]],
            )
        ],
    )  # fmt: skip


@torch.inference_mode()
def real_steps(engine: Engine, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Logits [N, V] of a prefill and a few decode steps, and the greedy tokens [N] that the same steps chose."""
    added(engine, prompts)
    logits, tokens = [], []
    while engine.has_work:
        seqs, num_new = engine.scheduler.schedule()
        step_logits, chosen = engine.runner.step(engine.runner.prepare(seqs, num_new))
        logits.append(step_logits.float().clone())
        tokens.append(chosen.clone())
        engine.scheduler.commit(seqs, num_new, chosen.tolist())
    return torch.cat(logits), torch.cat(tokens)


def greedy_section(about: Mapping[str, Any], config: EngineConfig, model: Model) -> Section:
    logits, chosen = real_steps(small_engine(config, model), prompts_of(config, model))
    buffer = logits.amax(dim=-1)
    logprobs = torch.log_softmax(logits, dim=-1)
    batch, vocab = about["decode_batch_size"], about["vocab_size"]
    same = int((chosen == logprobs.argmax(dim=-1)).sum())
    return Section(
        "Greedy choice in the step, and what the logprob buffer holds",
        [
            "The post takes the argmax of the logits in the model and hands out each row's index and value, instead "
            "of all logits. So does a step of the engine, in one graph with the model: the same tokens, and far fewer "
            "bytes.",
            "The value goes to a buffer named for log-probabilities, but it is the largest logit. A log-probability "
            "is never above 0. A logit may be anything, and says little without the others of its row: subtracting "
            "the row's logsumexp on the device would make it a log-probability.",
            f"Below are the logits of {len(logits)} tokens of a real run.",
        ],
        facts=[
            judge("rows whose token, chosen in the step, is the argmax of all logits", len(logits), same,
                  source=Source(COMPUTED, "all of them: the post chooses the same tokens")),
            judge("what output_logprob_shm holds", about["claims"]["logprob_buffer"], what_it_holds(buffer, logits),
                  rule="largest logit", why="max of the logits, without the logsumexp subtracted",
                  source=source_of(about, "claims.logprob_buffer")),
        ],
        grids=[
            Grid(
                "Greedy choice",
                ["of the rows", "number"],
                [
                    ["in all", len(logits)],
                    ["largest logit above 0", int((buffer > 0).sum())],
                    ["log-probability of the chosen token above 0", int((logprobs.amax(dim=-1) > 0).sum())],
                ],
            ),
            Grid(
                f"Bytes handed out a step, {batch} rows of {vocab:,} logits",
                ["what", "bytes"],
                [["all logits, fp32", batch * vocab * 4], ["index (int32) and value (fp32)", batch * (4 + 4)]],
            ),
        ],
    )  # fmt: skip


def what_it_holds(buffer: Tensor, logits: Tensor) -> str:
    """buffer [N] of the rows' chosen tokens, logits [N, V]."""
    if torch.allclose(buffer, torch.log_softmax(logits.float(), dim=-1).amax(dim=-1), atol=1e-5):
        return "log-probability"
    return "largest logit" if torch.equal(buffer, logits.float().amax(dim=-1)) else "neither"
