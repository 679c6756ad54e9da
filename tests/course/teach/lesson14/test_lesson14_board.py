"""Lesson 14: the board shows who waits, what is computed and who holds which blocks, as the stage's own tables say."""

from __future__ import annotations

import csv
import io
from collections import Counter

import pytest
import vl_convert

from course import teach
from course.contract.small_models import small_model
from roseinfer.engine.engine import Engine
from stages import Graphs, Policies, PrefixCache, TokenBudget

ARRIVALS = [(0, 6, 9), (0, 13, 6), (1, 9, 8), (2, 3, 12), (2, 3, 1), (4, 20, 4), (40, 5, 2)]
SIZES = {"num_blocks": 32, "block_size": 4, "max_num_seqs": 4}
CASES = {"roomy": {}, "9 blocks": {"num_blocks": 9}, "7 blocks": {"num_blocks": 7, "max_num_seqs": 8}}


def stage_of(case, kind=TokenBudget):
    return kind(small_model(), **SIZES | CASES[case], max_num_batched_tokens=8)


def run_of(case):
    return teach.record_run(stage_of(case), teach.work(small_model(), ARRIVALS))


@pytest.fixture(scope="module")
def runs():
    return {case: run_of(case) for case in CASES}


class Looking(TokenBudget):
    """Notes its own tables and queue before each commit, and the ids of those that give their blocks back."""

    def __init__(self, *args, **sizes):
        super().__init__(*args, **sizes)
        self.seen, self.gave_back = [], {}

    def commit(self, seqs, tokens):
        held = {seq.seq_id: tuple(self.tables.of(seq.seq_id, 0)) for seq in self.running}
        waiting = tuple(seq.seq_id for seq in self.waiting)
        cached = {seq.seq_id: seq.num_cached_tokens for seq in self.running}
        self.seen.append((held, waiting, cached, self.gave_back, self.num_free_blocks))
        self.gave_back = {}
        self.tables.check()
        return super().commit(seqs, tokens)

    def preempt(self, seq):
        self.gave_back[seq.seq_id] = len(self.tables.of(seq.seq_id, 0))
        super().preempt(seq)


@pytest.mark.parametrize("case", CASES)
def test_every_step_is_as_the_stages_own_tables_say(case):
    stage = stage_of(case, Looking)
    run = teach.record_run(stage, teach.work(small_model(), ARRIVALS))
    ids = [request.seq.seq_id for request in run.requests]
    assert (run.num_preemptions > 0) == (case != "roomy") and len(stage.seen) == len(run.steps)
    for step, (held, waiting, cached, gave_back, num_free) in zip(run.steps, stage.seen, strict=True):
        assert {ids[place]: own.blocks for place, own in step.pool.held.items()} == held
        assert tuple(ids[place] for place in step.pool.waiting) == waiting
        assert {ids[place]: number for place, number in step.pool.given_back.items()} == gave_back
        new = {row.request: row.num_new for row in step.rows}
        assert {ids[p]: own.num_cached + new.get(p, 0) for p, own in step.pool.held.items()} == cached
        assert sum(len(own.blocks) for own in step.pool.held.values()) == run.pool_size.num_blocks - num_free


def shapes_of(grid, name):
    [table] = [table for table in grid.spec["data"] if table["name"] == name]
    return [*csv.DictReader(io.StringIO(table["values"]))]


@pytest.mark.parametrize("case", CASES)
def test_a_frame_has_a_number_for_each_block_and_each_part_of_the_step(runs, case):
    run = runs[case]
    grid = teach.walk_board(run)
    assert grid.lengths == {"": len(run.steps)}
    for number, step in enumerate(run.steps):
        wanted = Counter()
        for request, held in step.pool.held.items():
            wanted[str(request)] += len(held.blocks)
        wanted.update(str(row.request) for row in step.rows)
        wanted.update(map(str, step.pool.waiting))
        texts = Counter(grid.texts(number))
        wanted.update(map(str, range(0, run.pool_size.num_blocks, 16)))  # labels of the pool's rows
        assert {text: n for text, n in texts.items() if text.isdigit()} == wanted


def test_used_slots_are_as_wide_as_they_are_many(runs):
    """A block is a cell of four slots. In the first step all blocks are empty before."""
    run = runs["7 blocks"]
    *_, pool = teach.walk_board(run).frames[0].panels
    used = [cell.width for cell in pool.cells if cell.outline == "none"]
    assert 4 * sum(used) == run.steps[0].num_tokens and max(used) <= 1


def test_titles_tell_what_happened(runs):
    grid = teach.walk_board(runs)
    told = [grid.texts(n, name) for name, run in runs.items() for n in range(len(run.steps))]
    assert {"Queue: empty", "step 0: 6 of request 0's prompt, 2 of request 1's prompt"} <= set(grid.texts(0) + told[-1])
    for said in (
        "Queue: 2 waiting; request 3 is next: the budget is used up",
        "requests run",
        "a step that preempts admits none",
        "is next: it needs",
        " again",
        "given back before the step",
        "finished, ",
        "on the clock",  # after a pause, steps and the clock differ
    ):
        assert any(said in text for texts in told for text in texts), said


def test_the_text_has_sums_and_preemptions(runs):
    lines = repr(teach.walk_board(runs)).splitlines()
    assert lines[0] == (
        "roomy: 18 steps, 59 prompt, 35 decode, at most 8 of 8 tokens in one; at most 15 of 32 blocks held; "
        "0 preemptions"
    )
    steps = [(n, step.pool.given_back) for n, step in enumerate(runs["7 blocks"].steps) if step.pool.given_back]
    assert len([line for line in lines if line.startswith("  step")]) >= len(steps) > 0
    number, given_back = steps[0]
    [request] = given_back
    assert f"  step {number}: request {request} preempted, {given_back[request]} blocks given back" in lines


def test_the_picture_is_of_a_preemption_where_there_is_one(runs):
    run = runs["9 blocks"]
    assert run.steps[teach.walk_board(run).shown].pool.given_back
    assert teach.walk_board(run, shown=2).shown == 2


@pytest.mark.parametrize("budget", [8, 64, 100])
def test_boxes_of_every_budget_and_many_waiting_requests_fit_the_page(budget):
    work = teach.work(small_model(), [(0, 12, 2)] * 20)
    stage = TokenBudget(small_model(), **SIZES, max_num_batched_tokens=min(budget, 64))
    stage.max_num_batched_tokens = budget
    grid = teach.walk_board(teach.record_run(stage, work))
    edges = [float(row["x"]) + float(row["width"]) for row in shapes_of(grid, "rects")]
    assert max(edges) <= grid.spec["width"]
    assert any(text.startswith("+ ") for text in grid.texts(0))
    assert "<svg" in vl_convert.vega_to_svg(grid.spec)


def test_a_queue_in_another_order_is_shown_too():
    """Stage 17 launches a step before it ends the one before."""
    stage = Policies(small_model(), **SIZES | {"num_blocks": 9}, policy="shortest", max_num_batched_tokens=8)
    work = teach.work(small_model(), ARRIVALS)
    run = teach.record_run(stage, work)
    assert [step.pool is not None for step in run.steps] == [True] * len(run.steps)


def of_kind(kind, clock="steps", **sizes):
    return teach.record_run(kind(small_model(), **SIZES | sizes), teach.work(small_model(), [(0, 9, 3)] * 2), clock)


def same_prompt_twice():
    work = teach.work(small_model(), [(0, 9, 6), (2, 9, 3)])
    return teach.record_run(PrefixCache(small_model(), **SIZES), [(work[0][0], work[0][1]), (work[1][0], work[0][1])])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: teach.walk_board({}), "runs must hold at least one run, got none"),
        (lambda: teach.walk_board("a run"), "run must be of a stage with a token budget, .*'a run'"),
        (lambda: teach.walk_board({"loop": of_kind(Graphs)}), "run 'loop' must be of a stage with a token budget"),
        (lambda: teach.walk_board(of_kind(Engine)), "must be of a stage with a token budget"),
        (lambda: teach.walk_board(of_kind(TokenBudget, "wall")), "by the clock of steps or a function"),
        (lambda: teach.walk_board(of_kind(TokenBudget, num_blocks=513)), "at most 512 blocks to be drawn, got 513"),
        (lambda: teach.walk_board(same_prompt_twice()), "must share no blocks, and in step 2 it does"),
        (lambda: teach.walk_board(of_kind(TokenBudget), shown=99), "shown must be a frame of the first choice"),
    ],
)
def test_what_is_no_board(call, message):
    with pytest.raises(ValueError, match=message):
        call()
