"""A recorded run, and its pool behind a slider: who held which block in every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import at_night

from course import teach
from course.teach.views.block_schedule import Schedule, record_run
from roseinfer.sequence import SamplingParams
from stages import LADDER, BlockTableCache, NaiveCat

PROMPTS = [[5] * 3, [6] * 6, [7] * 2, [8] * 5]
MAX_TOKENS = [4, 7, 3, 4]
PARAMS = [SamplingParams(max_tokens=n, ignore_eos=True) for n in MAX_TOKENS]
SIZES = {"num_blocks": 7, "block_size": 4, "max_num_seqs": 2}
DAILY = ("s01", "s05", "s10", "s13", "s15")  # of each kind of tables and of queues one: the others take blocks alike
NIGHTLY = tuple(stage.name for stage in LADDER if not stage.name.startswith(DAILY))


@pytest.fixture(scope="module")
def schedule(small) -> Schedule:
    return record_run(NaiveCat(small, **SIZES), PROMPTS, PARAMS)


def test_a_schedule_has_who_holds_takes_and_frees(schedule):
    assert [step.freed for step in schedule.steps if step.freed] == [(0,), (2,), (1,), (3,)]
    assert schedule.taken(5) == {0: 0} and schedule.taken(8) == {0: 2, 3: 0}
    assert schedule.num_reused == 3
    for step in schedule.steps:
        assert all(4 * (len(h.blocks) - 1) < h.num_tokens <= 4 * len(h.blocks) for h in step.held)


@pytest.mark.slow
@pytest.mark.parametrize("stage", at_night(LADDER, NIGHTLY), ids=lambda stage: stage.name)
def test_every_stage_leaves_the_same_schedule(small, schedule, stage):
    recorded = record_run(stage(small, **SIZES), PROMPTS, PARAMS)
    assert [replace(step, table=()) for step in recorded.steps] == list(schedule.steps)


def test_a_sequence_that_ends_with_its_prefill_gives_back_at_once(small):
    one = record_run(NaiveCat(small, **SIZES), [[1] * 4, [2]], SamplingParams(max_tokens=1))
    assert [(step.kind, step.freed) for step in one.steps] == [("prefill", (0,)), ("prefill", (1,))]
    assert one.taken(1) == {0: 0}


def test_the_frames_show_takes_frees_and_reuse(small, schedule):
    view = teach.walk_blocks(NaiveCat(small, **SIZES), PROMPTS, MAX_TOKENS)
    assert len(view.frames) == len(schedule.steps)
    fewest_free = 7 - max(step.num_blocks for step in schedule.steps)
    assert repr(view).endswith(f"18 tokens; blocks: 7, fewest free {fewest_free}, used again 3, free at the end 7")
    first, fourth, eighth = map(view.texts, (0, 4, 8))
    assert "step 0: prefill 0" in first and any("waiting: 1, 2, 3" in text for text in first)
    assert "4 · seq 1: 1/4" in fourth and "taken" in fourth
    assert fourth.count("given back now") == 2  # both blocks of sequence 0
    assert "taken, was seq 2's" in eighth and "taken, was seq 0's" in eighth
    assert "5 · free" in eighth and any("finished: 0, 2" in text for text in eighth)


def test_a_paged_stages_table_is_what_attention_was_given(small):
    class OtherPadding(BlockTableCache):
        def padded_row(self, blocks):
            return [blocks[i] if i < len(blocks) else 6 for i in range(self.max_blocks)]

    recorded = record_run(OtherPadding(small, **SIZES), PROMPTS, PARAMS)
    assert [step.table for step in recorded.steps[:4]] == [(), (), ((0, 6), (1, 2)), ((0, 3), (1, 2))]
    view = teach.walk_blocks(OtherPadding(small, **SIZES), PROMPTS, MAX_TOKENS)
    assert "The block table as attention gets it, [2, 2]; hatched: never used" in view.texts(2)
    assert "block 0, slot 3" in view.texts(2)
    [padding] = [cell for panel in view.frames[2].panels for cell in panel.cells if cell.hatched]
    assert padding.text == 6


def test_no_prompts_are_refused(small):
    with pytest.raises(ValueError, match="prompts must hold at least one"):
        teach.walk_blocks(NaiveCat(small, **SIZES), [], [])
