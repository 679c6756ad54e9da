"""Logits that are not finite: the sequence that they belong to ends with an error, and no other one notices."""

from __future__ import annotations

from collections import deque
from functools import cache

import pytest
import torch
from oracles import prompts_of
from served import params
from small_engines import SCHEDULES, engine_of, run_out

from roseinfer.engine.engine import Engine
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence

pytestmark = pytest.mark.slow


POISON = 7  # a token whose K and V, and what follows it, are NaN
LENGTHS = (5, 18, 13, 1, 30, 17, 2, 24)


@pytest.fixture
def poisoned(small: GPT2):
    """A context in which POISON is poison, whatever it is part of."""

    def poison(module, inputs, out):
        return torch.where((inputs[0] == POISON)[:, None], torch.nan, out)

    hooks = []
    yield lambda: hooks.append(small.token_embedding.register_forward_hook(poison)), lambda: hooks.pop().remove()
    for hook in hooks:
        hook.remove()


def healthy(small: GPT2) -> list[list[int]]:
    return [[token if token != POISON else 8 for token in ids] for ids in prompts_of(LENGTHS, small.config.vocab_size)]


def run(engine: Engine, prompts: list[list[int]], max_tokens: int = 12) -> list[Sequence]:
    return run_out(engine, [Sequence(prompt, params(max_tokens)) for prompt in prompts])


@cache
def continued(model: GPT2, prompt: tuple[int, ...]) -> list[int]:
    """What the model says where nothing is poison."""
    return reference_generate(model, [[*prompt]], 12)[0]


def all_continued(model: GPT2, prompts: list[list[int]], max_tokens: int = 12) -> list[list[int]]:
    return [continued(model, tuple(prompt))[:max_tokens] for prompt in prompts]


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("settings", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("at", [0, 9, 29])
def test_a_prompt_with_poison_ends_alone_and_its_blocks_are_not_kept(small, poisoned, settings, async_scheduling, at):
    """at: where in a prompt of 30 tokens, so in its first chunk or in its last. A second one has the same prefix."""
    begin, end = poisoned
    prompts = healthy(small)
    bad = [*prompts[4][:at], POISON, *prompts[4][at + 1 :]]
    twin = [*bad, 1, 2]
    wanted = all_continued(small, [*prompts, bad, twin])
    engine = engine_of(small, async_scheduling=async_scheduling, **settings)
    begin()
    first, second, *others = run(engine, [bad, twin, *prompts])
    for seq in (first, second):
        assert (seq.finish_reason, seq.output_ids) == ("error", [])
        assert seq.error == f"logits must be finite to sample from them, sequence {seq.seq_id} has NaN or infinity"
    may_say = [ids[: ids.index(POISON) + 1] if POISON in ids[:-1] else ids for ids in wanted[:-2]]
    assert [seq.output_ids for seq in others] == may_say
    assert all((seq.finish_reason == "error") == (len(seq.output_ids) < 12) == bool(seq.error) for seq in others)
    end()
    again = run(engine, [*prompts, bad, twin])
    assert [seq.output_ids for seq in again] == wanted


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("after", [1, 4, 11])
def test_a_sequence_that_fails_later_keeps_its_tokens_and_others_take_its_prompt_from_the_cache(
    small, async_scheduling, after
):
    prompts = healthy(small)
    wanted = all_continued(small, prompts)
    engine = engine_of(small, async_scheduling=async_scheduling)
    forward, launch, failing, launched = engine.runner.forward, engine.runner.launch, [], deque()

    def forward_and_fail(batch):
        logits, step = forward(batch), launched.popleft()
        for row, (seq, length) in enumerate(zip(step.seqs, batch.context_lens.tolist(), strict=True)):
            if seq in failing and length == seq.num_prompt_tokens + after:
                logits[row] = torch.inf
        return logits

    engine.runner.forward = forward_and_fail
    engine.runner.launch = lambda step: (launched.append(step), launch(step))
    failing.append(seq := Sequence(prompts[4], params(12)))
    engine.add(seq)
    others = run(engine, prompts[:4])
    assert (seq.finish_reason, seq.output_ids) == ("error", wanted[4][:after])
    assert [other.output_ids for other in others] == wanted[:4]
    found = engine.blocks.prefix_cache.num_found_tokens
    [again] = run(engine, [prompts[4]])
    assert again.output_ids == wanted[4] and engine.blocks.prefix_cache.num_found_tokens - found >= 24


def test_poison_that_an_aborted_prompt_left_is_found_out_by_the_first_that_shares_it(small, poisoned):
    begin, end = poisoned
    text = [POISON, *healthy(small)[4][1:]]
    [wanted] = all_continued(small, [text])
    engine = engine_of(small, max_num_batched_tokens=8)
    begin()
    engine.add(seq := Sequence(text, params(4)))
    engine.step()
    engine.abort(seq)
    end()
    assert len(engine.blocks.prefix_cache.find(Sequence(text))) == 1
    assert [run(engine, [text])[0].finish_reason for _ in range(2)] == ["error", "length"]
    assert run(engine, [text])[0].output_ids == wanted


# What callers of an LLM see


@pytest.fixture(params=[False, True], ids=["in turn", "one behind"])
def served(request, small: GPT2) -> LLM:
    return LLM(small, num_kvcache_blocks=24, block_size=8, max_num_seqs=4, async_scheduling=request.param)


def test_a_stream_s_bad_request_ends_alone_and_its_message_comes_with_it(served, small, poisoned):
    """A stream and another caller's generate, whose steps meet the bad request."""
    begin, _ = poisoned
    given = all_continued(small, healthy(small), 3)
    prompts, wanted = zip(
        *((prompt, ids) for prompt, ids in zip(healthy(small), given, strict=True) if POISON not in ids), strict=True
    )
    begin()
    stream = served.stream([prompts[0], [3, POISON, 4]], params(3))
    first = next(stream)
    outputs = served.generate(prompts, params(3), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == list(wanted)
    assert all(output.outputs[0].error is None for output in outputs)
    last = {output.request_id: output for output in [first, *stream]}.values()
    good, bad = sorted(last, key=lambda output: int(output.request_id))
    assert good.outputs[0].token_ids == wanted[0] and bad.finished
    assert (bad.outputs[0].finish_reason, bad.outputs[0].token_ids) == ("error", [])
    assert bad.outputs[0].error.startswith("logits must be finite to sample from them, sequence ")
    assert bad.metrics.finished_time and not bad.metrics.first_token_time


def test_a_bad_sample_ends_alone(served):
    """One of five samples of a prompt fails at its third token; the others keep their tokens."""
    asked = SamplingParams(max_tokens=6, temperature=1.0, seed=4, n=5, ignore_eos=True, logprobs=1)
    [wanted] = served.generate([[1, 2, 3]], asked, use_tqdm=False)
    sampler, seqs = served.engine.runner.sampler, []

    def sample(logits, tokens, chosen, lengths=None):
        seqs[:] = sorted({*seqs, *chosen}, key=lambda seq: seq.seq_id)
        for row, seq in enumerate(chosen):
            if seq.params.seed == 6 and lengths[row] == 5:
                logits[row, 0], tokens[row] = torch.nan, -1
        return sampler(logits, tokens, chosen, lengths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.engine.runner, "sampler", sample)
        [output] = served.generate([[1, 2, 3]], asked, use_tqdm=False)
    assert output.finished and [sample.finish_reason for sample in output.outputs] == 2 * ["length"] + ["error"] + 2 * [
        "length"
    ]
    for index, (one, other) in enumerate(zip(output.outputs, wanted.outputs, strict=True)):
        assert one.token_ids == other.token_ids[: 2 if index == 2 else 6] and len(one.logprobs) == len(one.token_ids)
