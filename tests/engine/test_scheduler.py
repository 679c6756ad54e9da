"""The scheduler over a fake model: budgets, chunks, preemption, order, aborts, and no request starves."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, continuation, request

from roseinfer.engine.policies import POLICIES, Policy, policy_for
from roseinfer.sequence import SamplingParams, Sequence


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(31 * seed + 7 * i) % 97 for i in range(length)]


def shape(step: list[tuple[Sequence, int]]) -> list[int]:
    return [n for _, n in step]


# The budget


def test_decodes_go_first_and_a_long_prompt_gets_the_rest_in_chunks():
    engine = FakeEngine(budget=8)
    short, long = request(prompt_of(3)), request(prompt_of(17, 1), 2)
    engine.add(short, long)
    engine.run_out()
    assert [shape(step) for step in engine.steps] == [[3, 5], [1, 7], [1, 5], [1, 1], [1]]
    assert [[seq for seq, _ in step] for step in engine.steps[:2]] == [[short, long]] * 2


def test_a_chunk_that_does_not_end_its_prompt_gives_no_token():
    engine = FakeEngine(budget=4)
    seq = request(prompt_of(9), 1)
    engine.add(seq)
    assert [engine.step(), engine.step()] == [[], []] and (len(seq), seq.num_cached_tokens) == (9, 8)
    assert engine.step() == [seq] and seq.finish_reason == "length"


def test_scheduling_again_gives_the_same_step():
    engine = FakeEngine(budget=9)
    engine.add(*(request(prompt_of(n, n)) for n in (1, 5, 1, 13)))
    for _ in range(4):
        steps = [engine.scheduler.schedule() for _ in range(2)]
        first, again = (dict(zip(step.seqs, step.num_new, strict=True)) for step in steps)
        assert first == again
        engine.step()


# A pool that is short


def test_the_youngest_is_preempted_and_computed_again():
    engine = FakeEngine(num_blocks=6)
    old, young = request(prompt_of(9), 12), request(prompt_of(9, 1), 12)
    engine.add(old, young)
    for _ in range(4):
        engine.step()
    assert engine.scheduler.num_preemptions == 0
    engine.step()
    assert (engine.scheduler.running, engine.scheduler.waiting) == ([old], [young])
    assert (engine.scheduler.num_preemptions, young.num_cached_tokens, len(young)) == (1, 0, 12)
    engine.run_out()


def test_one_that_joined_later_goes_before_one_that_came_later():
    """Age is arrival, not admission: a preempted one is still older than those after it."""
    engine = FakeEngine(num_blocks=9)
    first, second, third = (request(prompt_of(5, i), 20) for i in range(3))
    engine.add(first, second, third)
    engine.step()
    engine.scheduler.preempt(second)
    engine.step()
    assert engine.scheduler.running == [first, third, second]
    while not engine.scheduler.waiting:
        engine.step()
    assert engine.scheduler.waiting == [third]
    engine.run_out()


def test_in_a_step_that_preempts_nobody_joins():
    engine = FakeEngine(num_blocks=6, policy="packed")
    old, young, small = request(prompt_of(9), 12), request(prompt_of(10, 1), 12), request(prompt_of(2, 2), 2)
    engine.add(old, young)
    engine.step()
    assert engine.blocks.num_free == 0
    engine.add(small)
    while not engine.scheduler.num_preemptions:
        engine.step()
    assert [seq for seq, _ in engine.steps[-1]] == [old]
    engine.step()
    assert [seq for seq, _ in engine.steps[-1]] == [old, small]
    engine.run_out()


@pytest.mark.parametrize(("num_blocks", "max_tokens", "joins"), [(9, 5, False), (10, 5, True), (9, 4, True)])
def test_a_spare_block_is_left_for_every_eight_that_can_grow(num_blocks, max_tokens, joins):
    engine = FakeEngine(num_blocks=num_blocks, max_num_seqs=9, budget=32)
    engine.add(*(request([i], max_tokens) for i in range(9)))
    engine.step()
    assert len(engine.scheduler.running) == 8 + joins
    engine.run_out()


@pytest.mark.parametrize(("length", "max_tokens"), [(3, 1), (4, 1), (4, 2), (3, 9), (8, 5)])
def test_a_pool_of_all_worst_cases_takes_everyone_at_once(length, max_tokens):
    blocks = -(-(length + max_tokens - 1) // 4)
    engine = FakeEngine(num_blocks=24 * blocks, max_num_seqs=24, budget=1000)
    engine.add(*(request([i] * length, max_tokens) for i in range(24)))
    engine.run_out()
    assert len(engine.steps[0]) == 24 and len(engine.steps) == max_tokens
    assert engine.scheduler.num_preemptions == 0


# Who is next


def order_of(policy: str | Policy, requests: list[Sequence], **sizes: int) -> list[int]:
    """The places in `requests` in the order in which they finish, one at a time."""
    engine = FakeEngine(policy=policy, **{"max_num_seqs": 1, **sizes})
    engine.add(*requests)
    ended = []
    while engine.scheduler.has_work:
        ended += [requests.index(seq) for seq in engine.step() if seq.finish_reason]
    return ended


PROMPTS, OUTPUTS = (9, 3, 20, 3), (2, 5, 1, 7)


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [("fcfs", [0, 1, 2, 3]), ("shortest", [1, 3, 0, 2]), ("longest_output", [3, 1, 0, 2]), ("packed", [2, 0, 1, 3])],
)
def test_orders(policy, wanted):
    assert order_of(policy, [request(prompt_of(p), n) for p, n in zip(PROMPTS, OUTPUTS, strict=True)]) == wanted


@pytest.mark.parametrize("policy", POLICIES)
def test_priority_goes_before_any_policy(policy):
    seqs = [request(prompt_of(PROMPTS[i]), OUTPUTS[i], priority=-(i % 2)) for i in range(4)]
    assert {*order_of(policy, seqs)[:2]} == {1, 3}


def test_the_least_important_is_preempted_before_the_youngest():
    engine = FakeEngine(num_blocks=6)
    old, young = request(prompt_of(9), 12, priority=1), request(prompt_of(9, 1), 12)
    engine.add(old, young)
    engine.step()
    while not engine.scheduler.num_preemptions:
        engine.step()
    assert engine.scheduler.waiting == [old]
    engine.run_out()


def test_packed_leaves_no_block_idle():
    """The head of the queue needs more than there is: who fits goes first, the longest before others."""
    holder, large, small, middle = (request(prompt_of(n, n), 3) for n in (12, 20, 3, 7))
    for policy, wanted in (("fcfs", [holder]), ("packed", [holder, middle, small])):
        engine = FakeEngine(num_blocks=7, policy=policy, budget=64)
        engine.add(seq := request(holder.token_ids, 3))
        engine.step()
        engine.add(*(request(other.token_ids, 3) for other in (large, small, middle)))
        engine.step()
        assert [running.token_ids[:3] for running in engine.scheduler.running] == [s.token_ids[:3] for s in wanted]
        assert engine.scheduler.running[0] is seq
        engine.run_out()


def test_a_policy_of_ones_own():
    class Last(Policy):
        name = "last"

        def key(self, seq):
            return -seq.seq_id

    assert order_of(Last(), [request(prompt_of(3)) for _ in range(3)]) == [2, 1, 0]
    with pytest.raises(ValueError, match=r"^scheduling_policy must be one of fcfs, .*packed, or a Policy, got 'fifo'$"):
        policy_for("fifo")


@pytest.mark.parametrize(
    "unknown", [{"ignore_eos": False}, {"stop_token_ids": [3]}, {"stop": "a"}], ids=lambda unknown: next(iter(unknown))
)
def test_longest_output_needs_known_lengths(unknown):
    policy = policy_for("longest_output")
    policy.check(SamplingParams(ignore_eos=True))
    with pytest.raises(ValueError, match="^scheduling_policy='longest_output' has to know how many tokens come"):
        policy.check(SamplingParams(**{"ignore_eos": True, **unknown}))


# Every request gets its turn


@pytest.mark.parametrize("policy", ["fcfs", "shortest", "packed"])
def test_a_long_prompt_is_overtaken_a_bounded_number_of_times(policy, monkeypatch):
    """Short ones keep coming, two for each that ends."""
    monkeypatch.setattr("roseinfer.engine.scheduler.ROUND", 16)
    engine = FakeEngine(num_blocks=12, max_num_seqs=2, budget=8, policy=policy)
    long = request(prompt_of(40), 2)
    engine.add(request([1], 9), long)
    later: list[Sequence] = []
    overtakers = set()
    while not long.finish_reason:
        while len(engine.scheduler.waiting) < 4:
            later.append(request(prompt_of(1 + len(later) % 3, len(later)), 2))
            engine.add(later[-1])
        engine.step()
        if long not in engine.scheduler.running:
            overtakers |= {seq for seq in later if seq in engine.scheduler.running}
        assert len(later) < 200, "it starves"
    assert len(overtakers) < 16
    engine.run_out()


def test_a_prompt_that_runs_gets_some_of_every_step():
    """However many decode: a budget of max_num_seqs leaves one token at least, so L tokens take L steps at most."""
    engine = FakeEngine(num_blocks=40, max_num_seqs=4, budget=4)
    engine.add(*(request([i], 60) for i in range(3)))
    engine.step()
    long = request(prompt_of(23), 1)
    engine.add(long)
    for step in range(23):
        assert long.num_cached_tokens == step
        engine.step()
    assert long.finish_reason == "length"
    engine.run_out()


# Aborts


@pytest.mark.parametrize("state", ["waiting", "mid-chunk", "running", "preempted", "in flight", "ended"])
def test_abort_in_every_state(state):
    engine = FakeEngine(num_blocks=12, max_num_seqs=2, budget=8)
    others = [request(prompt_of(6, 1), 7), request(prompt_of(6, 2), 7)]
    seq = request(prompt_of(14), 7)
    engine.add(*(others if state == "waiting" else others[:1]), seq)
    engine.step()
    if state not in ("waiting", "mid-chunk"):
        engine.step(), engine.step()
    if state == "preempted":
        engine.scheduler.preempt(seq)
    step = engine.computed() if state == "in flight" else None
    if state == "ended":
        engine.run_out()
    else:
        assert (seq in engine.scheduler.waiting) == (state in ("waiting", "preempted"))
        assert (0 < seq.num_cached_tokens < 14) == (state == "mid-chunk")
        made = seq.output_ids
        engine.scheduler.abort(seq)
        engine.check()
        if step:
            assert seq not in engine.commit(step)
        assert (seq.finish_reason, seq.output_ids, seq.num_cached_tokens) == ("abort", made, 0)
    with pytest.raises(ValueError, match="neither waits nor runs here"):
        engine.scheduler.abort(seq)
    engine.run_out()


def test_a_token_in_flight_of_one_that_was_preempted_is_dropped_and_made_again():
    engine = FakeEngine()
    seq, other = request(prompt_of(6)), request(prompt_of(6, 1))
    engine.add(seq, other)
    engine.step()
    step = engine.computed()
    engine.scheduler.preempt(seq)
    assert engine.commit(step) == [other]
    assert seq.output_ids == continuation(prompt_of(6), 1) and seq.num_cached_tokens == 0
    engine.run_out()


def test_tokens_that_are_too_few_are_no_step():
    engine = FakeEngine()
    engine.add(*(request(prompt_of(3, i)) for i in range(3)))
    with pytest.raises(AssertionError, match="1 tokens for 3 sequences"):
        engine.scheduler.commit(engine.scheduler.schedule(), [5])
