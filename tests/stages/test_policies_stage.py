"""Stage 17: an order of all requests, the same tokens in any order, and no request starves."""

from __future__ import annotations

from itertools import count

import pytest
from checked_stages import MODEL
from checked_stages import request as any_request
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_right, prompts_of

from roseinfer.drive import drive
from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.policies import policy_for
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import SamplingParams, Sequence
from stages import Overlap, Policies
from stages.s17_policies import POLICIES

pytestmark = pytest.mark.slow


class InTurn:
    """Each step is over before the next is planned, and every token is 0, at no cost: what is left is who is next.
    steps: who was in each, with how many tokens."""

    def __init__(self, **arguments):
        super().__init__(MODEL, **arguments)
        self.steps = []

    def step(self):
        seqs, num_new = self.schedule()
        return self.commit(seqs, self.run(seqs, num_new))

    def run(self, seqs, num_new):
        self.steps.append(list(zip(seqs, num_new, strict=True)))
        is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])
        for seq, n in self.steps[-1]:
            seq.num_cached_tokens += n
        return [0] * (len(seqs) - is_cut)

    def run_out(self):
        while self.has_work:
            self.step()
        return self.steps


class Alone(InTurn, Policies):
    pass


class BeforeAlone(InTurn, Overlap):
    pass


numbers = count()


def request(prompt_len: int, max_tokens: int, priority: int = 0) -> Sequence:
    """With a text of its own."""
    prompt = [next(numbers) % MODEL.config.vocab_size] * prompt_len
    seq = any_request(prompt, max_tokens)
    seq.priority = priority
    return seq


# The same tokens


@pytest.mark.parametrize(("num_blocks", "preempts"), [(40, False), (8, True)])
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_the_references_whatever_the_policy(policy, num_blocks, preempts):
    stage = Policies(MODEL, num_blocks=num_blocks, block_size=4, max_num_seqs=4, policy=policy)
    prompts, lengths = prompts_of((1, 11, 3, 7, 5, 2), MODEL.config.vocab_size), (9, 4, 12, 3, 8, 6)
    seqs = list(map(any_request, prompts, lengths))
    for _ in drive(stage, seqs):
        stage.tables.check()
    assert_right(MODEL, seqs)
    assert (stage.num_preemptions > 0) == preempts and len(stage.tables) == 0 and not stage.rounds


# Who is next


def key(policy: str, seq: Sequence) -> int:
    prompt_len, output_len = seq.num_prompt_tokens, seq.params.max_tokens
    return {"fcfs": 0, "shortest": prompt_len, "longest_output": -output_len, "packed": -prompt_len}[policy]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(-1, 1)), min_size=1, max_size=12))
@draws(15)
@pytest.mark.parametrize("policy", POLICIES)
def test_orders(policy, drawn):
    """One at a time, in a pool with room for each: priority, then the policy's key, and of equals who came first."""
    stage = Alone(num_blocks=8, block_size=4, max_num_seqs=1, policy=policy)
    seqs = [request(*lengths) for lengths in drawn]
    for seq in seqs:
        stage.add(seq)
    ended = [step[-1][0] for step in stage.run_out()]
    order = list(dict.fromkeys(ended))
    assert order == sorted(seqs, key=lambda seq: (seq.priority, key(policy, seq)))


def test_packed_leaves_no_block_idle():
    """The first in the queue needs more than there is: of those that fit, the longest goes, and of equals the first."""
    for policy, wanted in (("fcfs", []), ("shortest", [3, 7]), ("packed", [7, 3])):
        stage = Alone(num_blocks=7, block_size=4, max_num_seqs=4, policy=policy)
        stage.add(request(12, 4))
        stage.step()
        for length in (20, 3, 7):
            stage.add(request(length, 2))
        stage.step()
        assert [seq.num_prompt_tokens for seq in stage.running[1:]] == wanted


def test_a_function_of_ones_own():
    stage = Alone(num_blocks=8, block_size=4, max_num_seqs=1, policy=lambda waiting, room: waiting[-1])
    seqs = [request(3, 2) for _ in range(3)]
    for seq in seqs:
        stage.add(seq)
    assert [step[0][0] for step in stage.run_out()[::2]] == seqs[::-1]


def test_first_come_is_the_stage_before():
    steps = []
    for stage_class in (BeforeAlone, Alone):
        stage = stage_class(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=8)
        seqs = [request(1 + 5 * i % 11, 2 + 3 * i % 8) for i in range(9)]
        for seq in seqs:
            stage.add(seq)
        steps.append([[(seqs.index(seq), n) for seq, n in step] for step in stage.run_out()])
        assert stage.num_preemptions
    assert steps[0] == steps[1]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 14), st.integers(1, 9), st.integers(-1, 1)), min_size=1, max_size=16
    ),
    st.sampled_from(sorted(POLICIES)),
    st.integers(3, 20),
    st.booleans(),
)
@draws(30)
def test_the_engines_scheduler_makes_the_same_choices(drawn, policy, budget, is_short):
    """Where no running sequence grows into another block, which each of them handles in its own way."""
    num_blocks, size, places = 4 if is_short else 64, 4, 3
    drawn = [(at, p, min(n, 1 - p % -size) if is_short else n, urgency) for at, p, n, urgency in sorted(drawn)]
    chosen = []
    for kind in ("stage", "engine"):
        if kind == "stage":
            queue = Alone(
                num_blocks=num_blocks,
                block_size=size,
                max_num_seqs=places,
                max_num_batched_tokens=budget,
                policy=policy,
            )
        else:
            queue = Scheduler(BlockManager(num_blocks, size, places, num_blocks), budget, (), policy_for(policy))
        seqs, coming, steps = [request(*lengths) for _, *lengths in drawn], 0, []
        while coming < len(seqs) or queue.has_work:
            while coming < len(seqs) and (drawn[coming][0] <= len(steps) or not queue.has_work):
                queue.add(seqs[coming])
                coming += 1
            if kind == "stage":
                step, num_new = queue.schedule()
                queue.commit(step, queue.run(step, num_new))
            else:
                scheduled = queue.schedule()
                step, num_new = scheduled.seqs, scheduled.num_new
                queue.commit(scheduled, [0] * len(scheduled.chosen))
            steps.append([(seqs.index(seq), n) for seq, n in zip(step, num_new, strict=True)])
        assert queue.num_preemptions == 0
        chosen.append(steps)
    assert chosen[0] == chosen[1]


# Every request gets its turn


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 9)), min_size=2, max_size=40),
    st.sampled_from(sorted(POLICIES)),
    st.integers(6, 9),
)
@draws(30)
def test_one_is_overtaken_by_fewer_than_a_round(drawn, policy, num_blocks):
    """Arrivals in any steps, in a pool that is short: everyone ends, and few that came later join earlier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.s17_policies.ROUND", 4)
        stage = Alone(num_blocks=num_blocks, block_size=4, max_num_seqs=3, policy=policy)
        seqs = []
        for pause, prompt_len, max_tokens in drawn:
            seqs.append(request(prompt_len, min(max_tokens, 4 * num_blocks + 1 - prompt_len)))
            stage.add(seqs[-1])
            for _ in range(pause):
                if stage.has_work:
                    stage.step()
        joined = list(dict.fromkeys(seq for step in stage.run_out() for seq, _ in step))
        assert all(seq.finish_reason == "length" for seq in seqs)
        for place, seq in enumerate(joined):
            later = [other for other in joined[:place] if seqs.index(other) > seqs.index(seq)]
            assert len(later) < 4


def test_who_was_preempted_goes_first_again():
    stage = Alone(num_blocks=6, block_size=4, max_num_seqs=2, policy="shortest")
    old, young = request(9, 12), request(10, 12)
    stage.add(old), stage.add(young)
    stage.step()
    stage.add(request(1, 2))
    while not stage.num_preemptions:
        stage.step()
    assert stage.next_in_line() is young
    stage.run_out()


# Bad input


@pytest.mark.parametrize("policy", ["fifo", None, 3, ["fcfs"]])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(ValueError, match=r"^policy must be one of fcfs, .*packed, or a function, got "):
        Policies(MODEL, num_blocks=4, policy=policy)


@pytest.mark.parametrize("params", [{}, {"ignore_eos": True, "stop_token_ids": (3,)}], ids=["end token", "stop token"])
def test_longest_output_refuses_what_may_stop_early(params):
    stage = Policies(MODEL, num_blocks=4, block_size=4, policy="longest_output")
    with pytest.raises(ValueError, match="^policy='longest_output' has to know how many tokens come: it needs"):
        stage.add(Sequence([1], SamplingParams(max_tokens=2, **params)))
    assert not stage.has_work and not stage.rounds


@pytest.mark.parametrize("runs", [False, True])
def test_an_aborted_one_leaves_nothing(runs):
    stage = Alone(num_blocks=4, block_size=4, policy="packed")
    seq = request(3, 9)
    stage.add(seq)
    if runs:
        stage.step()
    stage.abort(seq)
    assert (seq.finish_reason, stage.has_work, len(stage.tables), stage.rounds) == ("abort", False, 0, {})
