"""Stage 14: whatever the budget, the pool and the order of things, the same tokens, and every block in one place."""

from __future__ import annotations

import pytest
import torch
from checked_stages import MODEL, Checked
from checked_stages import request as any_request
from oracles import assert_right, prompts_of

from roseinfer.blocks import OutOfBlocks
from roseinfer.drive import drive
from stages import TokenBudget

pytestmark = pytest.mark.slow


LENGTHS = (1, 19, 7, 30, 4, 12)
MOST = 10  # new tokens of a request
PROMPTS = prompts_of(LENGTHS, 97)
TIGHT, ROOMY = 10, 64  # blocks of 4: in the first the longest fits alone, and hardly two of the others


def request(prompt, max_tokens=MOST, **params):
    return any_request(prompt, max_tokens, **params)


class CheckedBudget(Checked, TokenBudget):
    pass


def stage_of(num_blocks=ROOMY, block_size=4, max_num_seqs=4, budget=None):
    stage = CheckedBudget(
        MODEL, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget
    )
    stage.pool.fill_(torch.nan)  # a slot that was not written must not be read
    return stage


def run_out(stage, seqs):
    """To the end, everything right and free then."""
    list(drive(stage))
    assert all(seq.finish_reason == "length" for seq in seqs)
    assert_right(MODEL, seqs)
    stage.check()
    assert stage.num_free_blocks == stage.tables.num_blocks


# What a step is


def test_decodes_go_first_and_one_prompt_is_cut():
    stage = stage_of(budget=8)
    short, long, late = request(PROMPTS[2][:3], 4), request(PROMPTS[1][:17], 2), request(PROMPTS[3][:5], 1)
    for seq in (short, long, late):
        stage.add(seq)
    steps = []
    while stage.has_work:
        seqs, num_new = stage.schedule()
        steps.append(dict(zip(("short", "long", "late"), [0] * 3, strict=True)))
        for seq, n in zip(seqs, num_new, strict=True):
            steps[-1]["short" if seq is short else "long" if seq is long else "late"] = n
        stage.step()
    assert [tuple(step.values()) for step in steps] == [(3, 5, 0), (1, 7, 0), (1, 5, 2), (1, 1, 3)]


@pytest.mark.parametrize("budget, steps", [(30, 1), (29, 2), (15, 2), (4, 8), (None, 1)])
def test_a_prompt_alone_takes_as_many_steps_as_the_budget_goes_into_it(budget, steps):
    stage, seq = stage_of(budget=budget), request(PROMPTS[3], 1)
    stage.add(seq)
    made = [stage.step() for _ in range(steps)]
    assert made == [[]] * (steps - 1) + [[seq]] and not stage.has_work


def test_scheduling_again_gives_the_same_step():
    stage = stage_of(TIGHT, budget=9)
    for prompt in PROMPTS[:5]:
        stage.add(request(prompt))
    while stage.has_work:
        first = stage.schedule()
        assert stage.schedule() == first
        stage.step()


def test_only_a_step_without_prompts_is_replayed():
    stage = stage_of(budget=8)
    for prompt in (PROMPTS[2], PROMPTS[1]):
        stage.add(request(prompt))
    while any(seq.num_cached_tokens < seq.num_prompt_tokens for seq in (*stage.running, *stage.waiting)):
        stage.step()
        assert not stage.graphs
    stage.step()
    assert list(stage.graphs) == [2]


def test_the_places_are_as_many_as_it_was_told():
    stage = stage_of(max_num_seqs=2)
    seqs = [request([i + 1]) for i in range(5)]
    for seq in seqs:
        stage.add(seq)
    stage.step()
    assert (stage.running, list(stage.waiting)) == (seqs[:2], seqs[2:])
    run_out(stage, seqs)


# Preemption, abort, errors


@pytest.mark.parametrize(("at", "which"), [(1, 0), (2, 1), (3, 2), (5, 1), (8, 3), (12, 2)])
def test_preempted_at_any_step_the_tokens_are_the_same(at, which):
    stage, seqs = stage_of(budget=7), [request(PROMPTS[i]) for i in (4, 1, 2, 5)]
    for seq in seqs:
        stage.add(seq)
    for _ in range(at):
        stage.step()
    if seqs[which] in stage.running:
        stage.preempt(seqs[which])
        assert stage.waiting[0] is seqs[which] and stage.num_preemptions == 1
    run_out(stage, seqs)


def test_the_youngest_pays_and_is_the_next_to_join():
    stage = stage_of(9)
    old, young, third = (request(PROMPTS[i]) for i in (5, 1, 2))
    for seq in (old, young, third):
        stage.add(seq)
    stage.step()
    assert (stage.running, list(stage.waiting)) == ([old, young], [third])
    while not stage.num_preemptions:
        stage.step()
    assert (stage.running, list(stage.waiting)) == ([old], [young, third])
    assert (young.num_cached_tokens, len(young.output_ids)) == (0, 2)
    run_out(stage, [old, young, third])


@pytest.mark.parametrize("state", ["waiting", "in the middle of its prompt", "running", "preempted"])
def test_an_abort_gives_back_the_blocks_in_every_state(state):
    stage, seq, others = stage_of(budget=6), request(PROMPTS[3]), [request(PROMPTS[i]) for i in (2, 4)]
    for each in (others[0], seq, others[1]):
        stage.add(each)
    for _ in range({"waiting": 0, "in the middle of its prompt": 3}.get(state, 9)):
        stage.step()
    if state == "preempted":
        stage.preempt(seq)
    held = {"waiting": 0, "in the middle of its prompt": 10, "running": 30, "preempted": 0}[state]
    assert min(seq.num_cached_tokens, 30) == held
    stage.abort(seq)
    stage.check()
    assert seq.finish_reason == "abort" and not stage.holds(seq)
    with pytest.raises(ValueError, match="neither waits nor runs here"):
        stage.abort(seq)
    run_out(stage, others)


# Bad input


@pytest.mark.parametrize(
    "change, message",
    [
        ({"budget": 3}, "max_num_batched_tokens must be from max_num_seqs=4, .*, to 192, got 3"),
        ({"budget": 193}, "max_num_batched_tokens must be from max_num_seqs=4, .*, to 192, got 193"),
        ({"budget": 0}, "max_num_batched_tokens must be an integer of at least 1, got 0"),
        ({"budget": 8.0}, "max_num_batched_tokens must be an integer of at least 1, got 8.0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer of at least 1, got 0"),
    ],
)
def test_sizes_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        stage_of(**change)


def test_calls_that_are_refused():
    stage, seq = stage_of(TIGHT), request(PROMPTS[1])
    with pytest.raises(ValueError, match="step needs a sequence that waits or runs"):
        stage.step()
    with pytest.raises(ValueError, match="needs 11 blocks of 4 tokens, allowed: num_blocks=10"):
        stage.add(request([1] * 35))
    with pytest.raises(ValueError, match="does not run here"):
        stage.preempt(seq)
    stage.add(seq)
    for _ in range(2):  # while it waits, and while it runs
        with pytest.raises(ValueError, match=f"sequence {seq.seq_id} waits or runs here already"):
            stage.add(seq)
        stage.step()
    run_out(stage, [seq])
    with pytest.raises(ValueError, match="has finished"):
        stage.add(seq)


def test_blocks_that_others_hold_are_an_error_and_no_hang():
    stage, other, seq = stage_of(TIGHT), request(PROMPTS[3], 2), request(PROMPTS[1])
    stage.prefill(other)
    stage.add(seq)
    with pytest.raises(OutOfBlocks, match="others than those added here"):
        TokenBudget.schedule(stage)
    stage.free(other)
    run_out(stage, [seq])
