"""What a draft model has computed: blocks that are shared, preempted, copied, or were computed without drafts."""

from __future__ import annotations

import pytest
from drafting import draft_model, drafting_engine
from oracles import assert_right, prompts_of
from small_engines import requests, run_out

from roseinfer.sequence import SamplingParams, Sequence

pytestmark = pytest.mark.slow


def run(engine, seqs):
    run_out(engine, seqs)
    assert engine.metrics.num_accepted == engine.metrics.num_drafted, "the model disagrees with itself"


def computed(engine) -> list[int]:
    """Makes a list of the tokens that the draft model computes in each step of its own."""
    launch, seen = engine.speculation.proposer.runner.launch, []
    engine.speculation.proposer.runner.launch = lambda step: (seen.append(sum(step.num_new)), launch(step))
    return seen


def test_each_token_of_a_text_is_computed_once_and_drafts_on_top(small):
    engine = drafting_engine(small, draft_model(small, 3))
    seen = computed(engine)
    [seq] = requests(small, [11], max_tokens=10)
    run(engine, [seq])
    assert_right(small, [seq])
    # A prompt of 11 tokens and the first one after it; 4 new ones; of the last 5 tokens one needs no draft.
    assert seen == [12, 1, 1, 4, 1, 1] and engine.metrics.num_drafted == 6


def test_what_the_prefix_cache_finds_is_not_computed_again(small):
    engine = drafting_engine(small, draft_model(small, 3))
    seen = computed(engine)
    [prompt] = prompts_of((30,), small.config.vocab_size)
    for end in ([1], [2]):
        seq = Sequence([*prompt, *end], SamplingParams(max_tokens=4, ignore_eos=True))
        run(engine, [seq])
        assert_right(small, [seq])
    assert seen == [32, 1, 32 - 24, 1]  # three blocks of 8 tokens are found


def test_blocks_of_steps_without_drafts_are_caught_up_with(small):
    engine = drafting_engine(small, draft_model(small, 3))
    seen = computed(engine)
    [seq] = requests(small, [11], max_tokens=30)
    engine.add(seq)
    for drafts in [True] * 2 + [False] * 10 + [True] * 3:
        engine.speculation.payoff.is_worth = lambda *sizes, drafts=drafts: drafts
        engine.step()
    assert seen[:3] == [12, 1, 1] and seen[3] == 4 + 10
    run(engine, [])
    assert_right(small, [seq])


def test_a_long_text_is_caught_up_with_a_step_s_tokens_at_a_time(small):
    engine = drafting_engine(small, draft_model(small, 3), max_num_batched_tokens=16)
    seen = computed(engine)
    [seq] = requests(small, [40], max_tokens=12)
    run(engine, [seq])
    assert_right(small, [seq])
    assert seen[:4] == [16, 16, 11, 1] and max(seen) == 16


@pytest.mark.parametrize("num_blocks", [9, 12])
def test_it_agrees_with_itself_when_sequences_are_preempted(small, num_blocks):
    engine = drafting_engine(small, draft_model(small, 4), num_blocks=num_blocks)
    seqs = requests(small, (30, 13, 21, 8), max_tokens=30)
    run(engine, seqs)
    assert engine.scheduler.num_preemptions > 0
    assert_right(small, seqs)


def test_it_agrees_with_itself_on_samples_that_share_a_block(small):
    """n samples: the last block of their prompt is copied, in the pool of the engine's model alone."""
    engine = drafting_engine(small, draft_model(small, 4))
    [prompt] = prompts_of((13,), small.config.vocab_size)
    first = Sequence(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    others = [Sequence(prompt, first.params, parent=first) for _ in range(3)]
    run(engine, [first, *others])
    assert_right(small, [first, *others])


def test_its_pool_is_its_own_and_has_the_same_blocks(small):
    engine = drafting_engine(small, draft_model(small, 4))
    pool = engine.speculation.proposer.runner.pool
    assert pool.memory.shape[2] == engine.pool.memory.shape[2]
    assert pool.memory.data_ptr() != engine.pool.memory.data_ptr()
