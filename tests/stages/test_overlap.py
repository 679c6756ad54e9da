"""Stage 16: tokens, order and blocks when a step is launched before the one in front of it has been read."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest
import torch
from checked_stages import MODEL, request
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_right, prompts_of, small_model

from roseinfer.blocks import OutOfBlocks
from roseinfer.overlap import InTurn, OwnClock
from roseinfer.reference import reference_generate
from stages import Overlap, PrefixCache, TokenBudget

SIZES = {"num_blocks": 40, "block_size": 4, "max_num_seqs": 4}


def requests(prompts, max_tokens, **params):
    return [request(prompt, max_tokens, **params) for prompt in prompts]


def run(stage, seqs, arrive=None):
    """Every sequence to its end, sequence i added before step arrive[i]; the number of steps. All is free again."""
    coming = sorted(zip(arrive or [0] * len(seqs), range(len(seqs)), strict=True))
    num_steps = at = 0
    while coming or stage.has_work:
        while coming and coming[0][0] <= at:
            stage.add(seqs[coming.pop(0)[1]])
        at += 1
        if stage.has_work:
            num_steps += 1
            step(stage, seqs)
        assert at < 3000
    assert stage.num_free_blocks == stage.tables.num_blocks and not stage.waiting and not stage.running
    return num_steps


def step(stage, seqs):
    """One step, which gives one token to each sequence that it returns, and none to the others."""
    before = {seq: list(seq.token_ids) for seq in seqs}
    done = stage.step()
    for seq, tokens in before.items():
        assert seq.token_ids[: len(tokens)] == tokens and len(seq) == len(tokens) + (seq in done)
        assert min(seq.token_ids) >= 0, "a token that is known by its place alone shows"
    stage.tables.check()
    return done


class Watched(InTurn):
    """Notes in which order steps are handed over and asked for."""

    def __init__(self):
        self.events = []

    def launch(self, work, num_tokens):
        number = sum(kind == "launch" for kind, _ in self.events)
        self.events.append(("launch", number))
        launched = super().launch(work, num_tokens)
        result = launched.result
        launched.result = lambda: self.events.append(("ask", number)) or result()
        return launched


def test_the_next_step_is_launched_before_a_result_is_asked_for():
    device = Watched()
    num_steps = run(Overlap(MODEL, **SIZES, device=device), requests(prompts_of([3, 5], 97), 4))
    launch, ask = (lambda i: ("launch", i)), (lambda i: ("ask", i))
    # max_tokens is foreseen: with 4 tokens each there are 4 steps, and none too many.
    want = [launch(0), launch(1), ask(0), launch(2), ask(1), launch(3), ask(2), ask(3)]
    assert device.events == want and num_steps == 5


def test_the_host_plans_and_launches_while_the_device_is_at_work():
    """A device that does not go on until the host has launched what comes next: in turn, neither would go on."""
    launched_next = [threading.Event() for _ in range(6)]

    class Waits(OwnClock):
        def __init__(self):
            super().__init__()
            self.number = 0

        def launch(self, work, num_tokens):
            number, self.number = self.number, self.number + 1
            if number:
                launched_next[number - 1].set()

            def work_later():
                assert number == 5 or launched_next[number].wait(20), "nothing was launched while the device worked"
                return work()

            return super().launch(work_later, num_tokens)

    seqs = requests(prompts_of([3, 5], 97), 6)
    run(Overlap(MODEL, **SIZES, device=Waits()), seqs)
    assert_right(MODEL, seqs)


@pytest.mark.parametrize("stop_at", range(8))
def test_a_stop_token_at_any_position_ends_a_request_and_no_surplus_shows(stop_at):
    prompts = prompts_of([6, 3], 97)
    whole = reference_generate(MODEL, prompts, 8)
    stop = whole[0][stop_at]
    seqs = requests(prompts, 8, stop_token_ids=(stop,))
    run(Overlap(MODEL, **SIZES, device=OwnClock()), seqs)
    assert_right(MODEL, seqs)
    assert all(seq.finish_reason == ("stop" if seq.last_token_id == stop else "length") for seq in seqs)


def test_what_a_surplus_step_computes_is_no_ones():
    """Its K and V would fill a block. Who has the same text finds what was committed, and no more."""
    prompt = prompts_of([7], 97)[0]  # and one token more: two blocks of 4
    first = reference_generate(MODEL, [prompt], 1)[0][0]
    stage = Overlap(MODEL, **SIZES)
    run(stage, requests([prompt], 9, stop_token_ids=(first,)))
    assert len(stage.tables.key_of) == 1
    seqs = requests([[*prompt, first, 5, 6]], 4)
    run(stage, seqs)
    assert stage.num_found_tokens == 4
    assert_right(MODEL, seqs)


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [40, 9])
@pytest.mark.parametrize("device", [InTurn, OwnClock])
def test_rows_with_a_seed_draw_what_they_draw_in_turn_preempted_or_not(device, num_blocks):
    outputs, preempted = [], []
    for make in (PrefixCache, partial(Overlap, device=device())):
        stage = make(MODEL, num_blocks=num_blocks, block_size=4, max_num_seqs=4)
        seqs = [
            request(prompt, 10 + i, temperature=i % 2, top_k=(0, 5)[i % 3 > 0], seed=7 + i)
            for i, prompt in enumerate(prompts_of([9, 14, 3, 21, 6], 97))
        ]
        run(stage, seqs, arrive=[0, 0, 1, 2, 2])
        outputs.append([seq.output_ids for seq in seqs])
        preempted.append(stage.num_preemptions > 0)
    assert outputs[0] == outputs[1]
    assert preempted == [num_blocks == 9] * 2


def test_nobody_is_preempted_while_a_step_is_in_flight():
    stage = Overlap(MODEL, num_blocks=9, block_size=4, max_num_seqs=4)
    at_preemptions, preempt = [], stage.preempt

    def noting(seq):
        preempt(seq)  # raises while a step is in flight
        at_preemptions.append(list(stage.in_flight))

    stage.preempt = noting
    run(stage, requests(prompts_of([9, 14, 3, 21], 97), 10))
    assert at_preemptions and not any(at_preemptions)


def test_one_forward_has_chunks_beside_decodes_and_a_cut_prompt_gets_no_token():
    for stage_class in (TokenBudget, Overlap):
        seqs = requests(prompts_of([2, 40, 2], 97), 12)
        run(stage_class(MODEL, **SIZES, max_num_batched_tokens=7), seqs, arrive=[0, 1, 3])
        assert_right(MODEL, seqs)


@pytest.mark.parametrize("after", [0, 2, 5])
def test_an_abort_at_any_step_frees_at_once_and_harms_nobody(after):
    seqs = requests(prompts_of([6, 23, 9, 5], 97), 9)
    stage = Overlap(MODEL, **(SIZES | {"max_num_seqs": 3}), max_num_batched_tokens=8, device=OwnClock())
    for seq in seqs:
        stage.add(seq)
    for _ in range(after):
        step(stage, seqs)
    for victim in (seqs[1], seqs[3]):  # in a chunk or running; waiting, or just joined
        stage.abort(victim)
        assert not stage.holds(victim) and victim.finish_reason == "abort"
        stage.tables.check()
    gone = [list(seqs[1].token_ids), list(seqs[3].token_ids)]
    while stage.has_work:
        step(stage, seqs)
    assert [list(seqs[1].token_ids), list(seqs[3].token_ids)] == gone
    assert_right(MODEL, seqs)
    assert stage.num_free_blocks == stage.tables.num_blocks


def test_who_reads_and_writes_a_block_on_the_device_owns_it_then():
    """Blocks are given away while a step that reads them is in flight. On the device, which works in order, a block's
    next owner writes to all that it reads of it first."""
    prompts = prompts_of([9, 14, 3, 11, 6, 17], 97)
    whole = reference_generate(MODEL, prompts, 10)
    stops = tuple({tokens[i] for i, tokens in enumerate(whole)})
    stage = Overlap(MODEL, num_blocks=14, block_size=4, max_num_seqs=3)
    stage.pool.fill_(torch.nan)
    owner, given_away = {}, Counter()
    steps, reused = [], Counter()

    class Traced(OwnClock):
        def launch(self, work, num_tokens):
            held = {block: seq_id for seq_id in stage.tables.seq_ids for block in stage.tables.of(seq_id, 0)}
            for block, seq_id in held.items():
                if owner.get(block, seq_id) != seq_id:
                    reused[block] += 1
                    given_away[block] += bool(steps) and block in steps[-1]
                owner[block] = seq_id
            slots = stage.side.inputs["slot_mapping"][:num_tokens] // stage.block_size
            steps.append(set(slots.tolist()))
            return super().launch(work, num_tokens)

    stage.device = Traced()
    seqs = requests(prompts, 10, stop_token_ids=stops)
    run(stage, seqs, arrive=[0, 0, 0, 1, 2, 3])
    assert given_away.total() > 0, "no block changed hands while a step that writes to it was in flight"
    assert_right(MODEL, seqs)


class OutOfMemory(RuntimeError):
    pass


def run_past(error, stage, seqs):
    """To the end of all, with one step that raises such an error: it appends nothing, and no other loses anything."""
    raised = 0
    while stage.has_work:
        before = [len(seq) for seq in seqs]
        try:
            step(stage, seqs)
        except error:
            raised += 1
            assert [len(seq) for seq in seqs] == before and not stage.in_flight
        stage.tables.check()
    assert raised == 1
    assert_right(MODEL, seqs)
    assert stage.num_free_blocks == stage.tables.num_blocks


@pytest.mark.slow
@pytest.mark.parametrize(("device", "error"), [(InTurn, KeyboardInterrupt), (OwnClock, OutOfMemory)])
@pytest.mark.parametrize("number", range(5))
def test_after_an_error_of_the_device_nothing_is_appended_and_all_goes_on(number, error, device):
    seqs = requests(prompts_of([6, 3, 19], 97), 6)
    device = device()
    launch, count = device.launch, iter(range(1000))

    def failing(work, num_tokens):
        def fail():
            raise error("injected")

        return launch(fail if next(count) == number else work, num_tokens)

    device.launch = failing
    stage = Overlap(MODEL, **SIZES, max_num_batched_tokens=12, device=device)
    for seq in seqs:
        stage.add(seq)
    run_past(error, stage, seqs)


@pytest.mark.parametrize("method", ["write_inputs", "write_tables", "write_padding", "schedule", "commit"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_after_an_error_of_the_host_nothing_is_lost(method, number):
    seqs = requests(prompts_of([6, 3, 19], 97), 7)
    stage = Overlap(MODEL, **SIZES, max_num_batched_tokens=12, device=OwnClock())
    whole, count = getattr(PrefixCache, method), iter(range(1000))

    def failing(self, *args, **kwargs):
        if next(count) == number:
            raise OutOfMemory("injected")
        return whole(self, *args, **kwargs)

    for seq in seqs:
        stage.add(seq)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrefixCache, method, failing)
        run_past(OutOfMemory, stage, seqs)


def test_a_row_of_nan_is_an_error_and_its_request_can_be_aborted():
    model = small_model()
    stage = Overlap(model, **SIZES)
    good, bad = requests(prompts_of([5, 4], 96), 5)
    bad.token_ids[0] = 96
    model.wte.weight[96] = torch.nan
    for seq in (good, bad):
        stage.add(seq)
    stage.step()
    with pytest.raises(ValueError, match=f"sequence {bad.seq_id} has NaN"):
        stage.step()
    stage.abort(bad)
    while stage.has_work:
        step(stage, [good])
    assert_right(MODEL, [good])


def test_a_step_of_nothing_is_refused_and_one_that_others_leave_no_block_for():
    stage = Overlap(MODEL, **(SIZES | {"num_blocks": 4}))
    with pytest.raises(ValueError, match="add one first"):
        stage.step()
    other = requests(prompts_of([13], 97), 1)[0]
    stage.prefill(other)
    seqs = requests(prompts_of([6], 97), 3)
    stage.add(seqs[0])
    with pytest.raises(OutOfBlocks, match="others"):
        stage.step()
    stage.free(other)
    while stage.has_work:
        step(stage, seqs)
    assert_right(MODEL, seqs)


def test_prefixes_samples_and_copies_are_shared_as_without_overlap():
    common = prompts_of([22], 97)[0]
    outputs = []
    for stage_class in (PrefixCache, Overlap):
        stage = stage_class(MODEL, **SIZES)
        parent = request(common, 8, temperature=1.0, seed=1)
        samples = [parent, *(request(common, 8, parent, temperature=1.0, seed=seed) for seed in (2, 3))]
        run(stage, samples)
        later = requests([[*common[:16], 5, 6]], 5)
        run(stage, later)
        outputs.append([seq.output_ids for seq in [*samples, *later]])
        assert stage.num_found_tokens == 2 * 21 + 16
    assert outputs[0] == outputs[1]


STOPS = tuple(range(0, 97, 5))
REQUEST = st.tuples(
    st.integers(1, 30), st.integers(1, 9), st.integers(0, 12), st.sampled_from([0.0, 1.0]), st.booleans()
)  # prompt, max_tokens, arrival, temperature, with stop tokens


@pytest.mark.slow
@draws(15, derandomize=True)
@given(st.lists(REQUEST, min_size=1, max_size=7), st.integers(11, 24), st.integers(4, 40), st.booleans())
def test_any_arrivals_give_the_tokens_of_the_stage_before(drawn, num_blocks, budget, on_thread):
    outputs = []
    for make in (PrefixCache, partial(Overlap, device=OwnClock() if on_thread else InTurn())):
        stage = make(MODEL, num_blocks=num_blocks, block_size=4, max_num_seqs=4, max_num_batched_tokens=budget)
        seqs = [
            request(prompts_of([n], 97, seed=i)[0], most, temperature=temperature, seed=i, stop_token_ids=stops * STOPS)
            for i, (n, most, _, temperature, stops) in enumerate(drawn)
        ]
        run(stage, seqs, arrive=[arrival for _, _, arrival, _, _ in drawn])
        outputs.append([(seq.output_ids, seq.finish_reason) for seq in seqs])
    assert outputs[0] == outputs[1]
