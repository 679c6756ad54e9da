"""The forward as one compiled function: logits, tokens, K and V in the pool are those of the model's own modules."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from oracles import assert_right, model_of
from small_engines import engine_of, requests, run_out, widened

from roseinfer.engine.engine import Engine
from roseinfer.models import Model, random_model
from roseinfer.models.weights import prepared_copy
from roseinfer.sampling import NO_TOKEN

MODELS = ("gpt2", "gpt2, 2 KV heads", "llama", "qwen2", "qwen3")


def pair(model: Model, quantization: str | None = None) -> tuple[Engine, Engine]:
    """The same prepared model twice: in one call, and module by module."""
    prepared = prepared_copy(model, quantization)
    whole, modules = (engine_of(prepared, max_num_batched_tokens=16, enforce_eager=eager) for eager in (False, True))
    assert whole.runner.whole is not None and modules.runner.whole is None
    return whole, modules


def steps(engine: Engine, lengths: list[int], tokens: Iterable[torch.Tensor] = ()):
    """Logits of each step and the tokens that it chooses, with chunks of prompts, prompts beside decodes, and decodes
    alone. tokens: of each step, to go on with instead of its own."""
    given = iter(tokens)
    seen, forward = [], engine.runner.compute

    def step(batch):
        logits, tokens = forward(batch)
        seen.append((logits.clone().float(), tokens.clone()))
        return logits, next(given, tokens)

    engine.runner.compute = step
    run_out(engine, requests(engine.model, lengths, max_tokens=6))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_gives_what_the_modules_give(name, quantization):
    model = model_of(name)
    whole, modules = pair(widened(model) if quantization else model, quantization)
    close = 2e-4 if quantization is None else 0.05  # with fewer bits x is rounded on the way in
    ours = steps(whole, [5, 30, 13, 1])
    # The same texts: with fewer bits two tokens may be so close that rounding decides.
    theirs = steps(modules, [5, 30, 13, 1], [tokens for _, tokens in ours])
    for (logits, tokens), (wanted, wanted_tokens) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(logits, wanted, rtol=close, atol=close * float(wanted.abs().max()))
        if quantization is None:
            assert torch.equal(tokens, wanted_tokens)
    memory = close * float(modules.pool.memory.abs().max())
    used = slice(0, modules.pool.num_blocks)  # what the padding block holds is of no one
    torch.testing.assert_close(whole.pool.memory[:, :, used], modules.pool.memory[:, :, used], rtol=close, atol=memory)


def logits_by_length(engine: Engine, num_beside: int) -> torch.Tensor:
    """Logits [9, V] of a sequence's new tokens, beside so many others; of drafts, those of the tokens that hold."""
    seq, *others = requests(engine.model, [30, 5, 13, 21], max_tokens=9)
    found, work = {}, engine.runner.work

    def noted(step, batch, last, compute):
        def seen(batch):
            logits, tokens = compute(batch)
            lengths = engine.runner.row_lengths(step, batch).tolist()
            rows = zip(logits[: len(lengths)].clone(), step.rows, lengths, strict=True)
            found.update({length: row for row, of, length in rows if of is seq})
            return logits, tokens

        return work(step, batch, last, seen)

    engine.runner.work = noted
    run_out(engine, (*others[:num_beside], seq))
    return torch.stack([found[length] for length in range(30, 39)])


@pytest.mark.slow
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_logits_are_the_same_bits_whatever_the_batch_the_chunks_and_the_drafts(name, quantization):
    """With fewer bits a last bit that differs may round a value of x the other way, and then a token differs."""
    model = prepared_copy(widened(model_of(name)), quantization)
    alone = logits_by_length(engine_of(model), 0)
    for num_beside, settings in (
        (3, {}),
        (0, {"max_num_batched_tokens": 5}),
        (3, {"max_num_batched_tokens": 7, "num_blocks": 9}),
        (3, {"async_scheduling": True}),
        (3, {"speculative": {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}}),
        (1, {"speculative": {"method": "draft_model", "model": model, "num_tokens": 4}}),
    ):
        engine = engine_of(model, **settings)
        if engine.speculation:
            engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
        assert torch.equal(logits_by_length(engine, num_beside), alone), settings
        assert not engine.speculation or engine.metrics.num_drafted


@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_are_those_of_both_oracles(name):
    model = model_of(name)
    seqs = requests(model, [5, 30, 13, 1, 21], max_tokens=9)
    assert_right(model, run_out(engine_of(prepared_copy(model)), seqs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_bfloat16_is_as_near_as_the_modules_are(name):
    exact = model_of(name)
    model = deepcopy(exact).to(torch.bfloat16)
    whole, modules = pair(model)
    reference, _ = pair(exact)
    all_logits = [[logits for logits, _ in steps(engine, [9])][0] for engine in (whole, modules, reference)]
    ours, theirs = ((logits - all_logits[2]).abs().max() for logits in all_logits[:2])
    assert ours <= 1.5 * theirs  # hidden states are float32 between the products


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_row_that_is_not_finite_gets_no_token_and_spoils_no_other(name):
    model = model_of(name)
    clean = steps(pair(model)[0], [3, 5])
    spoilt = deepcopy(model)
    with torch.no_grad():
        spoilt.token_embedding.weight[7] = float("nan")  # and so the token 7 is also NaN in the output matrix
    if spoilt.lm_head is not None:
        logits, tokens = steps(pair(spoilt)[0], [3, 5])[0]
        assert logits.isfinite().all() and torch.equal(tokens, clean[0][1])
    else:
        logits, tokens = steps(pair(spoilt)[0], [3, 5])[0]
        assert (tokens == NO_TOKEN).all() and logits[:, 7].isnan().all()


def test_models_that_it_does_not_compute_keep_their_modules(small):
    assert engine_of(small).runner.whole is None, "its matrices are as they were loaded"
    odd = random_model(replace(small.config, intermediate_size=97), seed=1)
    assert engine_of(prepared_copy(odd)).runner.whole is None, "a row of 97 has no pairs"
    assert_right(odd, run_out(engine_of(prepared_copy(odd)), requests(odd, [5, 30], max_tokens=5)))
    assert engine_of(prepared_copy(small, "int8")).runner.whole is None, "a row of 32 is no whole group of 64"
