"""An engine that drafts gives the tokens that it gives without: all shapes, schedules, ends and errors."""

from __future__ import annotations

import pytest
import torch
from drafting import NGRAM, draft_model, drafting_engine, scripted_engine, similar
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_right, model_of, prompts_of, small_model, values_of
from served import drafting_always
from small_engines import SCHEDULES, assert_empty, engine_of, requests, run_out, widened

from roseinfer.drive import drive
from roseinfer.llm.llm import LLM
from roseinfer.models.weights import prepared_copy
from roseinfer.reference import hf_generate, reference_generate
from roseinfer.sampling import probabilities
from roseinfer.sequence import SamplingParams, Sequence

pytestmark = pytest.mark.slow

LENGTHS = (5, 30, 13, 1, 21, 8)


def methods_of(model):
    return {"ngram": NGRAM, "draft model": draft_model(similar(model)), "itself": draft_model(model, 5)}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("method", ["ngram", "draft model", "itself"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_greedy_tokens_are_those_of_both_oracles(name, method, schedule):
    model = model_of(name)
    engine = drafting_engine(model, methods_of(model)[method], **schedule)
    seqs = run_out(engine, requests(model, LENGTHS, max_tokens=20))
    assert_right(model, seqs, reference_generate, hf_generate)
    counts = engine.metrics
    assert counts.num_drafted and (counts.num_accepted or (name, method) == ("llama", "ngram")), (
        "a text without repeats"
    )
    assert (counts.num_accepted == counts.num_drafted) == (method == "itself")
    assert counts.num_new_tokens == 20 * len(seqs)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("method", ["ngram", "itself"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_step_in_one_call_gives_the_tokens_that_it_gives_without_drafts(name, method, quantization):
    model = prepared_copy(widened(model_of(name)), quantization)
    engine = drafting_engine(model, NGRAM if method == "ngram" else draft_model(model))
    assert engine.runner.whole is not None
    wanted = run_out(engine_of(model), requests(model, LENGTHS, max_tokens=20))
    seqs = run_out(engine, requests(model, LENGTHS, max_tokens=20))
    assert [seq.output_ids for seq in seqs] == [seq.output_ids for seq in wanted]
    assert engine.metrics.num_accepted > 0


@draws(25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 6)), min_size=1, max_size=6),
    aborted=st.sets(st.integers(0, 5), max_size=2),
    num_tokens=st.integers(1, 6),
    budget=st.sampled_from([4, 7, 16, 1024]),
    num_blocks=st.sampled_from([8, 10, 64]),
    caching=st.booleans(),
    with_model=st.booleans(),
)
def test_any_schedule(lengths, aborted, num_tokens, budget, num_blocks, caching, with_model):
    """Prompts begin with the same text or do not, come at their own times, and some are aborted."""
    model = model_of("gpt2")
    speculative = draft_model(model, num_tokens) if with_model else NGRAM | {"num_tokens": num_tokens}
    if num_tokens >= budget:
        budget = 1024
    engine = drafting_engine(
        model, speculative, num_blocks=num_blocks, max_num_batched_tokens=budget, enable_prefix_caching=caching
    )
    [text] = prompts_of((40,), model.config.vocab_size)
    seqs = []
    for length, max_tokens, own in lengths:
        seq = Sequence([own, *text[: length - 1]], SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        seqs.append(seq)
        engine.add(seq)
        engine.step()
        engine.blocks.check()
    for index in aborted:
        if index < len(seqs) and seqs[index] in engine.scheduler:
            engine.abort(seqs[index])
            engine.blocks.check()
    run_out(engine, [])
    assert_right(model, seqs)
    if with_model:
        assert engine.metrics.num_accepted == engine.metrics.num_drafted


# How a sequence ends


def right_drafts(wanted: dict[int, list[int]], num_tokens: int = 4):
    """The tokens that follow, of sequences whose continuation is known."""

    def draft_of(seq):
        return wanted[seq.seq_id][len(seq) - seq.num_prompt_tokens :][:num_tokens]

    return draft_of


def test_metrics_of_a_made_case(small, prompts, wanted):
    """9 new tokens; drafts of 4, the second of which is wrong in its third token."""
    seq = Sequence(prompts[0], SamplingParams(max_tokens=9, ignore_eos=True))
    drafts = {1: wanted[0][1:5], 6: [*wanted[0][6:7], 96 - wanted[0][7]]}
    engine = scripted_engine(small, lambda seq: drafts.get(len(seq.output_ids), []))
    times = engine.add(seq)
    seen = [len(seq.output_ids) for _ in drive(engine)]
    assert seq.output_ids == wanted[0] and seen == [1, 6, 8, 9]
    counters = engine.metrics.counters()
    assert (counters["drafted"], counters["accepted"], counters["new_tokens"]) == (6, 5, 9)
    assert counters["tokens_per_step"] == 9 / 4 and counters["steps"] == 4
    assert [step.num_tokens for step in engine.metrics.history] == [5, 5, 3, 1]
    assert [step.num_new_tokens for step in engine.metrics.history] == [1, 5, 2, 1]
    first, second, third, last = engine.metrics.history
    assert times.steps == [first, *[second] * 5, *[third] * 2, last]


@pytest.mark.parametrize("at", range(9))
def test_a_stop_token_ends_it_wherever_in_a_draft_it_is(small, prompts, wanted, at):
    stop = wanted[1][at]
    at = wanted[1].index(stop)
    seq = Sequence(prompts[1], SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=[stop]))
    engine = scripted_engine(small, right_drafts({seq.seq_id: wanted[1]}))
    run_out(engine, [seq])
    assert seq.output_ids == wanted[1][: at + 1] and seq.finish_reason == "stop"
    assert engine.metrics.num_new_tokens == at + 1
    # The first token comes with the prompt; the fifth after it, and one that max_tokens makes the last, are no draft's.
    assert engine.metrics.num_accepted == at - at // 5 - (at == 8)
    assert engine.metrics.counters()["tokens_per_step"] == (at + 1) / (1 + -(-at // 5))


def test_a_step_that_ends_with_an_error_gave_the_drafts_before_it(small, prompts, wanted):
    def fails_later(output_ids, logits):
        return logits[:0] if len(output_ids) == 3 else logits  # of another shape

    seq = Sequence(prompts[1], SamplingParams(max_tokens=9, ignore_eos=True, logits_processors=[fails_later]))
    engine = scripted_engine(small, right_drafts({seq.seq_id: wanted[1]}))
    run_out(engine, [seq])
    assert seq.output_ids == wanted[1][:3] and seq.finish_reason == "error"
    assert engine.metrics.num_accepted == 2 and engine.metrics.counters()["tokens_per_step"] == 3 / 2


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_no_draft_goes_past_max_tokens(small, prompts, wanted, max_tokens):
    seq = Sequence(prompts[2], SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    engine = scripted_engine(small, right_drafts({seq.seq_id: wanted[2]}))
    run_out(engine, [seq])
    assert seq.output_ids == wanted[2][:max_tokens] and seq.finish_reason == "length"
    # Of the tokens after the first one, each step's last one needs no draft.
    assert engine.metrics.num_drafted == engine.metrics.num_accepted == (max_tokens - 1) - -(-(max_tokens - 1) // 5)


def test_drafts_take_what_the_step_and_the_pool_have_left(small, prompts, wanted):
    """Two sequences in a pool of four blocks of 8 tokens: nothing is preempted for a draft."""
    first, second = (Sequence(prompts[0], SamplingParams(max_tokens=9, ignore_eos=True)) for _ in range(2))
    engine = scripted_engine(
        small, lambda seq: wanted[0][len(seq.output_ids) :][:4], num_blocks=4, max_num_batched_tokens=7, max_num_seqs=2
    )
    run_out(engine, [first, second])
    assert first.output_ids == second.output_ids == wanted[0]
    assert max(step.num_tokens for step in engine.metrics.history) == 7
    assert engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize("after", [0, 1, 3, 8])
def test_a_row_that_is_not_finite_ends_the_sequence_after_the_tokens_before_it(small, prompts, wanted, after):
    seq = Sequence(prompts[1], SamplingParams(max_tokens=9, ignore_eos=True, logprobs=1))
    engine = scripted_engine(small, right_drafts({seq.seq_id: wanted[1]}))
    forward = engine.runner.forward

    def forward_and_fail(batch):
        logits = forward(batch)
        logits[batch.positions[batch.sample_rows] == seq.num_prompt_tokens + after - 1] = torch.nan
        return logits

    engine.runner.forward = forward_and_fail
    times = engine.add(seq)
    run_out(engine, [])
    assert (seq.finish_reason, seq.output_ids) == ("error", wanted[1][:after])
    assert len(seq.logprobs) == len(times.steps) == engine.metrics.num_new_tokens == after


def test_a_draft_that_poisons_its_own_rows_spoils_no_other(small, prompts, wanted):
    """A rejected token whose K and V are NaN: the next step writes other K and V to its slot."""
    poison = next(token for token in range(97) if all(token not in ids for ids in (*prompts, *wanted)))
    model = small_model()
    model.token_embedding.register_forward_hook(
        lambda module, inputs, out: torch.where((inputs[0] == poison)[:, None], torch.nan, out)
    )
    seqs = [Sequence(prompt, SamplingParams(max_tokens=9, ignore_eos=True)) for prompt in prompts[:3]]
    known = {seq.seq_id: ids for seq, ids in zip(seqs, wanted, strict=False)}
    engine = scripted_engine(model, lambda seq: [*right_drafts(known, 1)(seq), poison, 1])
    run_out(engine, seqs)
    assert [seq.output_ids for seq in seqs] == wanted[:3]


def test_a_failed_step_is_made_again(small, prompts, wanted):
    seqs = [Sequence(prompt, SamplingParams(max_tokens=9, ignore_eos=True)) for prompt in prompts]
    engine = drafting_engine(small, draft_model(small), num_blocks=9)
    for seq in seqs:
        engine.add(seq)
    launch, num_calls = engine.runner.launch, 0

    def failing(step):
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3 == 0:
            raise MemoryError
        launch(step)

    engine.runner.launch = failing
    while engine.has_work:
        try:
            engine.step()
        except MemoryError:
            engine.blocks.check()
    assert_empty(engine)
    assert [seq.output_ids for seq in seqs] == wanted


@pytest.mark.parametrize("part", ["propose", "launch", "wait"])
def test_a_failed_step_gives_back_the_blocks_of_its_drafts(small, wanted, prompts, part):
    """Each sequence holds blocks for its own tokens alone, and the next step is right."""
    seqs = [Sequence(prompt, SamplingParams(max_tokens=9, ignore_eos=True)) for prompt in (prompts[0], prompts[2])]
    settings = {"num_blocks": 30, "block_size": 1, "max_num_seqs": 2, "enable_prefix_caching": False}
    engine = scripted_engine(small, lambda seq: [1, 2, 3, 4], **settings)
    for seq in seqs:
        engine.add(seq)
    engine.step()
    with pytest.MonkeyPatch.context() as patch:
        failing = engine.speculation.proposer if part == "propose" else engine.runner
        patch.setattr(failing, part, lambda *arguments: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            engine.step()
    engine.blocks.check()
    assert [len(engine.blocks.of(seq.seq_id)) for seq in seqs] == [len(seq) for seq in seqs]
    run_out(engine, [])
    assert [seq.output_ids for seq in seqs] == [wanted[0], wanted[2]]


# Sampling


@pytest.mark.parametrize("method", ["ngram", "draft model"])
def test_a_seed_gives_the_tokens_that_it_gives_without_drafts(small, method):
    params = [SamplingParams(20, temperature=0.3 + i / 4, top_k=i, seed=i, ignore_eos=True) for i in range(5)]
    prompts = prompts_of((5, 30, 13, 1, 21), small.config.vocab_size)
    alone, drafted = engine_of(small), drafting_engine(small, methods_of(small)[method])
    given = [
        [seq.output_ids for seq in run_out(engine, [Sequence(*one) for one in zip(prompts, params, strict=True)])]
        for engine in (alone, drafted)
    ]
    assert given[0] == given[1] and drafted.metrics.num_accepted > 0


@pytest.mark.parametrize("rank", [0, 2])
def test_drawn_tokens_keep_their_distribution(small, rank):
    """Chi-square over 5,000 draws of two tokens after the first one, each one of three. rank 0: the likeliest are
    drafted; 2: the least likely of the three."""
    draws, top_k = 5_000, 3
    params = SamplingParams(max_tokens=3, temperature=0.7, top_k=top_k, ignore_eos=True)
    following: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}

    def after(text: tuple[int, ...]) -> tuple[list[int], list[float]]:
        if text not in following:
            from roseinfer.reference import reference_logits

            probs = probabilities(reference_logits(small, list(text))[-1:], [params])[0]
            top = probs.topk(top_k)
            following[text] = top.indices.tolist(), top.values.tolist()
        return following[text]

    def draft_of(seq: Sequence) -> list[int]:
        text = tuple(seq.token_ids)
        second = after(text)[0][rank]
        return [second, after((*text, second))[0][rank]]

    engine = scripted_engine(small, draft_of, num_blocks=400, max_num_seqs=200, max_num_batched_tokens=1024)
    torch.manual_seed(0)
    seqs = run_out(engine, [Sequence([1, 2, 3], params) for _ in range(draws)])
    counts: dict[tuple[int, ...], int] = {}
    for seq in seqs:
        counts[tuple(seq.output_ids)] = counts.get(tuple(seq.output_ids), 0) + 1
    chi_square = sum_of_expected = 0.0
    for a, p_a in zip(*after((1, 2, 3)), strict=True):
        for b, p_b in zip(*after((1, 2, 3, a)), strict=True):
            for c, p_c in zip(*after((1, 2, 3, a, b)), strict=True):
                expected = draws * p_a * p_b * p_c
                sum_of_expected += expected
                chi_square += (counts.pop((a, b, c), 0) - expected) ** 2 / expected
    assert not counts and sum_of_expected == pytest.approx(draws, rel=1e-4)
    assert chi_square < 54.05  # 99.9% quantile for 26 degrees of freedom; the seed is fixed
    assert 0 < engine.metrics.num_accepted < engine.metrics.num_drafted


# What callers of an LLM see


@pytest.fixture(params=["ngram", "draft model"])
def pair(request, tiny) -> tuple[LLM, LLM]:
    """The same model without drafts and with them."""
    method = {"ngram": NGRAM, "draft model": draft_model(tiny)}[request.param]
    sizes = {"num_kvcache_blocks": 60, "block_size": 8, "max_num_seqs": 4, "tokenizer": "tiny"}
    return LLM(tiny, **sizes), drafting_always(LLM(tiny, speculative=method, **sizes))


CODE = "class A:\n    def __init__(self):\n        self.a = a\n        self.b = b\n        self.c"
PROMPTS = ["Return a new list. Return a new list. Return", "None", CODE]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"logprobs": 2},
        {"stop": (" file", "two")},
        {"stop": "current", "logprobs": 0},
        {"temperature": 0.8, "seed": 5, "n": 3, "logprobs": 1},
    ],
    ids=str,
)
def test_outputs_are_those_without_drafts(pair, params):
    asked = SamplingParams(max_tokens=60, **params)
    plain, drafted = (llm.generate(PROMPTS, asked, use_tqdm=False) for llm in pair)
    assert pair[1].engine.metrics.num_accepted > 0
    for one, other in zip(plain, drafted, strict=True):
        for a, b in zip(one.outputs, other.outputs, strict=True):
            assert (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)
            assert (a.stop_reason, a.error) == (b.stop_reason, b.error)
            for mine, theirs in zip(a.logprobs or (), b.logprobs or (), strict=True):
                assert values_of(mine) == pytest.approx(values_of(theirs), abs=1e-4)
        assert len(one.outputs) > 1 or other.metrics.last_token_time is not None
    assert_empty(pair[1].engine)


def test_a_stream_s_outputs_grow_by_what_a_step_gave(pair):
    plain, drafting = pair
    wanted = plain.generate(PROMPTS, SamplingParams(max_tokens=30), use_tqdm=False)
    texts: dict[str, list[str]] = {}
    for output in drafting.stream(PROMPTS, SamplingParams(max_tokens=30)):
        texts.setdefault(output.prompt, []).append(output.outputs[0].text)
    for output in wanted:
        seen = texts[output.prompt]
        assert seen[-1] == output.outputs[0].text
        assert all(later.startswith(earlier) for earlier, later in zip(seen, seen[1:], strict=False))
    assert_empty(drafting.engine)


def test_an_aborted_request_leaves_nothing(pair):
    _, drafting = pair
    for output in drafting.stream(PROMPTS, SamplingParams(max_tokens=30, ignore_eos=True)):
        if len(output.outputs[0].token_ids) >= 5 and not output.finished:
            drafting.abort(output.request_id)
    assert_empty(drafting.engine)


def test_steps_take_turns_on_every_device(small):
    assert drafting_engine(small).depth == 1
