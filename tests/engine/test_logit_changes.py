"""Requests that change logits: their tokens are transformers' for the same settings, on every way through the engine,
and requests beside them get what they get alone."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import cycle

import pytest
import torch
from changes_oracle import continued
from devices import ByModule
from oracles import model_of, prompts_of, small_model
from small_engines import assert_empty, engine_of, run_out
from tiers import in_every_run

from roseinfer.engine import logit_changes
from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.sampling_params import SamplingParams
from roseinfer.sequence import Sequence

VOCABULARY = model_of("gpt2").config.vocab_size
EVEN = tuple(range(0, VOCABULARY, 2))
NEVER = float("-inf")


def no_repeat(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Bans what the output has: it depends on every token."""
    logits[output_ids] = NEVER
    return logits


def as_prompt(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Prefers the tokens of the prompt."""
    logits[prompt_ids] += 2.0
    return logits


CHANGES = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition_penalty below 1": {"repetition_penalty": 0.6},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "frequency_penalty below 0": {"frequency_penalty": -0.8},
    "logit_bias": {"logit_bias": {3: 4.0, 17: -100, 20: 2.5}},
    "allowed_token_ids": {"allowed_token_ids": EVEN},
    "logits_processors": {"logits_processors": [no_repeat]},
    "all of them": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": {4: 3.0},
        "allowed_token_ids": EVEN,
        "logits_processors": [no_repeat],
        "min_p": 0.02,
    },
}
DRAWN = {"temperature": 0.9, "seed": 7, "top_k": 30, "top_p": 0.95}
CHANGES_OF_DRAWN = {
    "min_p": {"min_p": 0.2},
    "min_p of 1": {"min_p": 1.0},
    "min_p, hot": {"min_p": 0.05, "temperature": 3.0},
}
EVERY = {
    **CHANGES,
    **{f"{name}, drawn": {**DRAWN, **change} for name, change in (CHANGES | CHANGES_OF_DRAWN).items()},
}
WAYS = {
    "roomy": {},
    "chunks": {"max_num_batched_tokens": 8},
    "a small pool": {"num_blocks": 7},
    "no prefix cache": {"enable_prefix_caching": False},
    "asynchronous": {"async_scheduling": True},
    "asynchronous, a small pool, chunks": {"async_scheduling": True, "num_blocks": 7, "max_num_batched_tokens": 8},
    "drafts": {"speculative": {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}},
    "drafts, a small pool": {
        "speculative": {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1},
        "num_blocks": 10,
    },
}
PROMPTS = prompts_of((5, 30, 13, 1, 21), VOCABULARY)


def run(engine: Engine, seqs: list[Sequence]) -> list[list[int]]:
    if engine.speculation:
        engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True  # whatever the clock says
    return [seq.output_ids for seq in run_out(engine, seqs)]


def asked(max_tokens: int = 12, **wishes) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True, **wishes})


@pytest.fixture(scope="module")
def wanted(small: Model) -> dict[str, list[list[int]]]:
    """By change, the tokens of each prompt."""
    all_changes = EVERY | {"nothing": {}, "nothing, drawn": DRAWN}
    return {
        name: [continued(small, prompt, asked(**change))[0] for prompt in PROMPTS[:3]]
        for name, change in all_changes.items()
    }


@pytest.fixture(scope="module")
def plain(small: Model) -> list[list[list[int]]]:
    """Tokens that two requests without changes get alone: a greedy one and a drawn one."""
    return [run(engine_of(small), [Sequence(PROMPTS[i], params)]) for i, params in ((3, asked()), (4, asked(**DRAWN)))]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_change_does_something(wanted, name):
    """Else the tests below would not see whether it is applied."""
    assert wanted[name] != wanted["nothing, drawn" if "drawn" in name else "nothing"]


PAIRS = {f"{name}-{way}": (name, way) for name in EVERY for way in WAYS}
# Each change on one way, in turn, and all changes together on each way; where drafts are accepted, too.
PAIRS_DAILY = {
    *(f"{name}-{way}" for name, way in zip(EVERY, cycle(WAYS))),
    *(f"{name}-{way}" for name in EVERY if name.startswith("all of them") for way in WAYS),
    *(f"frequency_penalty below 0-{way}" for way in WAYS if "drafts" in way),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), in_every_run(PAIRS, PAIRS_DAILY))
def test_on_every_way_beside_requests_that_change_nothing(small, wanted, plain, name, way):
    engine = engine_of(small, **{"max_num_seqs": 5} | WAYS[way])
    changed = [Sequence(prompt, asked(**EVERY[name])) for prompt in PROMPTS[:3]]
    others = [Sequence(PROMPTS[3], asked()), Sequence(PROMPTS[4], asked(**DRAWN))]
    seqs = [changed[0], others[0], changed[1], others[1], changed[2]]
    run(engine, seqs)
    assert [seq.output_ids for seq in changed] == wanted[name]
    assert [[seq.output_ids] for seq in others] == plain
    if "a small pool" in way and "drafts" not in way:
        assert engine.scheduler.num_preemptions
    if "drafts" in way and name == "frequency_penalty below 0":
        assert engine.metrics.num_accepted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all of them", "all of them, drawn", "repetition_penalty"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_in_the_compiled_step_and_in_graphs(family, name):
    model = model_of(family)
    params = asked(24, **EVERY[name])
    ids = [continued(model, prompt, params)[0] for prompt in PROMPTS[:3]]
    prepared = prepared_copy(model)
    for engine, whole in ((engine_of(prepared), True), (engine_of(model, make_runner=ByModule), False)):
        assert (engine.runner.whole is not None) == whole
        seqs = [Sequence(prompt, params) for prompt in PROMPTS[:3]]
        other = Sequence(PROMPTS[3], asked(24))
        run(engine, [*seqs, other])
        assert [seq.output_ids for seq in seqs] == ids
        assert other.output_ids == continued(model, PROMPTS[3], asked(24))[0]
        assert whole or engine.runner.graphs.graphs


@pytest.mark.slow
@pytest.mark.parametrize("num_drafts", [0, 1, 4])
def test_logits_beside_a_change_stay_as_they_are_to_the_last_bit(small, num_drafts):
    """Log-probabilities are the model's own, before any change; and those of the other rows are those without it."""
    seen = []
    for change in ({}, {"allowed_token_ids": EVEN, "repetition_penalty": 1.5}):
        settings = {"speculative": {"method": "ngram", "num_tokens": num_drafts}} if num_drafts else {}
        beside = Sequence(PROMPTS[0], asked(1, logprobs=5, **change))
        other = Sequence(PROMPTS[1], asked(1, logprobs=5, **DRAWN))
        run(engine_of(small, **settings), [beside, other])
        seen.append((beside.logprobs[0], other.output_ids, other.logprobs))
    (before, *unchanged), (after, *same) = seen
    assert unchanged == same
    likeliest = sorted(before.items(), key=lambda entry: entry[1].rank)[:5]
    assert sorted(after.items(), key=lambda entry: entry[1].rank)[:5] == likeliest


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("least", [1, 4, 9])
def test_no_token_ends_a_text_before_min_tokens(small, least, async_scheduling):
    prompt = PROMPTS[1]
    greedy = continued(small, prompt, asked())[0]
    model = small_model()
    model.config = replace(model.config, eos_token_id=greedy[2])
    params = SamplingParams(max_tokens=12, min_tokens=least, stop_token_ids=[greedy[0], greedy[4]])
    ids, reason = continued(model, prompt, params)
    assert len(ids) >= least and ids != continued(model, prompt, replace(params, min_tokens=0))[0]
    seq = Sequence(prompt, params)
    assert run(engine_of(model, async_scheduling=async_scheduling), [seq, Sequence(PROMPTS[0], asked())])[0] == ids
    assert seq.finish_reason == reason


def test_with_ignore_eos_the_models_end_token_may_come_before_min_tokens(small):
    """It does not end the text, so nothing keeps it back."""
    greedy = continued(small, PROMPTS[1], asked())[0]
    model = small_model()
    model.config = replace(model.config, eos_token_id=greedy[2])
    assert run(engine_of(model), [Sequence(PROMPTS[1], asked(min_tokens=9))]) == [greedy]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_function_gets_the_texts_as_they_are(small, async_scheduling):
    """With the token that a step in flight makes, once each, whatever is beside it."""
    calls = []

    def seen(prompt_ids, output_ids, logits):
        calls.append((prompt_ids, output_ids))
        return logits

    seq = Sequence(PROMPTS[0], asked(5, logits_processors=[seen]))
    engine = engine_of(small, async_scheduling=async_scheduling)
    run(engine, [seq, Sequence(PROMPTS[1], asked(9))])
    assert calls[:5] == [(PROMPTS[0], seq.output_ids[:n]) for n in range(5)] and len(calls) == 5


def test_functions_are_called_in_their_order_with_two_texts_or_one(small):
    params = asked(logits_processors=[as_prompt, no_repeat])
    ids = run(engine_of(small), [Sequence(PROMPTS[2], params)])[0]
    assert len({*ids}) == len(ids) and {*PROMPTS[2]} & {*ids}
    only_first = run(engine_of(small), [Sequence(PROMPTS[2], asked(logits_processors=[as_prompt]))])[0]
    assert only_first != ids


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda ids, logits: 1 / 0, r"logits_processors\[0\] failed: ZeroDivisionError: division by zero$"),
        (
            lambda ids, logits: None,
            r"logits_processors\[0\] failed: ValueError: it must return logits of shape .* got None",
        ),
        (lambda ids, logits: logits[1:], r"logits_processors\[0\] failed: ValueError: it must return .* got shape"),
        (
            lambda ids, logits: logits * NEVER,
            "logits_processors left no token to choose: each logit is -inf, or one is NaN or infinity$",
        ),
    ],
)
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_function_that_fails_ends_its_request_alone(small, plain, function, reason, async_scheduling):
    failing = Sequence(
        PROMPTS[0], asked(logits_processors=[lambda ids, row: function(ids, row) if len(ids) > 2 else row])
    )
    other = Sequence(PROMPTS[3], asked())
    run(engine_of(small, async_scheduling=async_scheduling), [failing, other])
    assert failing.finish_reason == "error" and len(failing.output_ids) == 3 and failing.is_own_error
    assert re.match(reason, failing.error), failing.error
    assert [other.output_ids] == plain[0]


def test_changes_that_leave_no_token_end_the_request(small, plain):
    none = Sequence(
        PROMPTS[0], SamplingParams(allowed_token_ids=[5], stop_token_ids=[5], min_tokens=2, ignore_eos=True)
    )
    other = Sequence(PROMPTS[3], asked())
    run(engine_of(small), [none, other])
    assert none.finish_reason == "error" and none.output_ids == []
    assert none.error.startswith("allowed_token_ids, min_tokens left no token to choose: ") and none.is_own_error
    assert [other.output_ids] == plain[0]


def test_half_precision_logits_change_in_float32():
    """A penalty of 0.1 is lost in the rounding of a logit of 30 in bfloat16."""
    logits = torch.zeros(2, VOCABULARY, dtype=torch.bfloat16)
    logits[:, 7], logits[:, 8] = 30.0, 29.9
    seqs = [Sequence([1, 7], asked()), Sequence([1, 7], asked(presence_penalty=0.2))]
    for seq in seqs:
        seq.num_prompt_tokens = 1
    changed = logit_changes.changed_rows(seqs, {}, [2, 2])
    made, tokens = logit_changes.LogitChanges(())(logits, logits.argmax(-1), changed)
    assert tokens.tolist() == [7, 8] and made.dtype == torch.float32
    assert float(made[1, 7]) == pytest.approx(29.8) and float(made[0, 7]) == 30.0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_batch_without_such_requests_takes_no_part_of_it(small, monkeypatch, async_scheduling):
    for name in ("add", "keep_only", "penalise_repetition", "apply_min_p"):
        monkeypatch.setattr(logit_changes, name, lambda *given: pytest.fail("no request asks for it"))
    monkeypatch.setattr(logit_changes.LogitChanges, "__call__", lambda *given: pytest.fail("no request asks for it"))
    monkeypatch.setattr(logit_changes, "ChangedRow", lambda *given: pytest.fail("no request asks for it"))
    engine = engine_of(small, async_scheduling=async_scheduling)
    assert all(run(engine, [Sequence(prompt, asked(**DRAWN)) for prompt in PROMPTS]))


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"allowed_token_ids": [1, 5000]}, "allowed_token_ids has token id 5000, which is out of range: vocab_size="),
        ({"logit_bias": {5000: 1.0}}, "logit_bias has token id 5000, which is out of range: vocab_size="),
        ({"stop": "a"}, r"stop=\('a',\) needs a tokenizer: use roseinfer.LLM, or stop_token_ids$"),
        ({"bad_words": "a"}, r"bad_words=\('a',\) needs a tokenizer: use roseinfer.LLM, or logits_processors$"),
        ({"max_tokens": None}, "max_tokens=None is for roseinfer.LLM, which knows how long a sequence may become"),
        ({"prompt_logprobs": 1}, "prompt_logprobs=1 is for roseinfer.LLM: a sequence has none$"),
    ],
)
def test_an_engine_refuses_what_it_cannot_do(small, wishes, message):
    engine = engine_of(small)
    with pytest.raises(ValueError, match=f"^{message}"):
        engine.add(Sequence([1], SamplingParams(**wishes)))
    assert_empty(engine)


EXTREMES = {
    "repetition_penalty": [1e-300, 1e-39, 1e-6, 1e6, 1e39, 1e300, 10**400],
    "temperature": [1e-300, 1e-45, 1e38, 1e300, 10**400],
    "min_p": [1e-310, 1e-45, Fraction(1, 10**400), 1],
    "top_p": [1e-310, 1e-45, Fraction(1, 10**400), 1 - 1e-16],
    "top_k": [10**400],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "logit_bias": [dict.fromkeys(range(VOCABULARY), bias) for bias in (-(10**400), -1e308, 1e308, 10**400)],
}


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [{}, {"speculative": {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}}])
@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_value_that_is_allowed_leaves_tokens_to_choose(small, name, drafts):
    """With logits of every sign and size, 0 among them, and with every other extreme value beside it."""
    others = {"repetition_penalty": 1e300, "temperature": 1e300, "min_p": 1e-310, "frequency_penalty": -2}
    for value in EXTREMES[name]:
        for beside in ({}, {"temperature": 1e-300}, {"temperature": 1.0, "repetition_penalty": 1e-300}, others):
            params = asked(6, **{"seed": 3, **beside, name: value})
            seqs = [Sequence(prompt, params) for prompt in ([*range(VOCABULARY)][:40], PROMPTS[0])]
            run(engine_of(small, **drafts), seqs)
            assert [seq.finish_reason for seq in seqs] == ["length", "length"], (value, beside, seqs[0].error)


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_a_penalty_makes_no_infinity_of_a_logit_and_no_logit_of_a_ban(penalty):
    logits = torch.tensor([[0.0, 30.0, -30.0, NEVER, 1e38, -1e38]])
    changed = logit_changes.changed_rows([Sequence([*range(6)], asked(repetition_penalty=penalty))], {}, [6])
    made, tokens = logit_changes.LogitChanges(())(logits, logits.argmax(-1), changed)
    assert made.isfinite().tolist() == [[True, True, True, False, True, True]] and made[0, 3] == NEVER
    assert tokens.tolist() == [1 if penalty < 1 else 4]
