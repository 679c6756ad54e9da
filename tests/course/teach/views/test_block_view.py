"""A recorded schedule, and the pool behind a slider: the owner of every block in every step."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from course import teach
from course.teach.views.block_schedule import Held, Schedule, ScheduleStep
from roseinfer.sequence import SamplingParams
from stages import LADDER, BlockTableCache, NaiveCat, VectorizedGather

PROMPTS = [[5] * 3, [6] * 6, [7] * 2, [8] * 5]
PARAMS = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (4, 7, 3, 4)]
SIZES = {"num_blocks": 7, "block_size": 4, "max_num_seqs": 2}

CONTRACT = """\
{stage}: 7 blocks of 4 tokens, 4 sequences, at most 2 at once
block            0   1   2   3   4   5   6
  0 prefill 0   +0   .   .   .   .   .   .
  1 prefill 1    0  +1  +1   .   .   .   .
  2 decode       0   1   1   .   .   .   .
  3 decode       0   1   1  +0   .   .   .
  4 decode       0   1   1   0  +1   .   .   frees 0
  5 prefill 2   ±2   1   1   .   1   .   .
  6 decode       2   1   1   .   1   .   .
  7 decode       2   1   1   .   1   .   .   frees 2
  8 prefill 3   ±3   1   1  ±3   1   .   .
  9 decode       3   1   1   3   1   .   .   frees 1
 10 decode       3   .   .   3   .   .   .
 11 decode       3   .   .   3   .   .   .   frees 3
12 steps; 5 blocks in use at most, 3 taken that another had before, 7 free at the end"""


@pytest.fixture(scope="module")
def schedule(small) -> Schedule:
    return teach.record_schedule(NaiveCat, small, PROMPTS, PARAMS, **SIZES)


def step(held: dict[int, tuple[int, ...]], freed: tuple[int, ...] = (), num_tokens: int = 1) -> ScheduleStep:
    seqs = tuple(held)
    return ScheduleStep("decode", seqs, tuple(Held(seq, num_tokens, blocks) for seq, blocks in held.items()), freed)


def schedule_of(*steps: ScheduleStep) -> Schedule:
    return Schedule("hand made", 4, 2, 2, (1, 1, 1), steps)


@pytest.mark.slow
@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_every_stage_leaves_the_same_schedule(small, stage):
    recorded = teach.record_schedule(stage, small, PROMPTS, PARAMS, **SIZES)
    assert repr(teach.block_view(recorded)) == CONTRACT.format(stage=stage.name)


def test_one_params_serves_all_prompts(small):
    same = teach.record_schedule(NaiveCat, small, PROMPTS[:2], SamplingParams(max_tokens=2, ignore_eos=True), **SIZES)
    assert [step.kind for step in same.steps] == ["prefill", "prefill", "decode"]
    assert same.steps[-1].freed == (0, 1)


def test_a_sequence_that_ends_with_its_prefill_gives_back_at_once(small):
    one = teach.record_schedule(NaiveCat, small, [[1] * 4, [2]], SamplingParams(max_tokens=1), **SIZES)
    assert [(step.kind, step.freed) for step in one.steps] == [("prefill", (0,)), ("prefill", (1,))]
    assert one.taken(1) == {0: 0}


def test_fills_follow_the_cached_tokens(schedule):
    for number, step in enumerate(schedule.steps):
        assert schedule.owners(number).count(None) == 7 - sum(len(held.blocks) for held in step.held)
        assert all(4 * (len(h.blocks) - 1) < h.num_tokens <= 4 * len(h.blocks) for h in step.held)
    assert [held.num_tokens for held in schedule.steps[4].held] == [6, 9]


def test_the_frames_show_takes_frees_and_reuse(schedule):
    view = teach.block_view(schedule)
    assert len(view.frames) == len(schedule.steps)
    first, fourth, eighth = map(view.texts, (0, 4, 8))
    assert "step 0: prefill 0" in first and any("waiting: 1, 2, 3" in text for text in first)
    assert "4 · seq 1: 1/4" in fourth and "taken" in fourth
    assert fourth.count("given back now") == 2  # both blocks of sequence 0
    assert "taken, was seq 2's" in eighth and "taken, was seq 0's" in eighth
    assert "5 · free" in eighth and any("finished: 0, 2" in text for text in eighth)
    history = view.frames[8].panels[-1]
    assert len(history.cells) == len({*_stays(schedule)}) + 1  # and the step that is shown


def _stays(schedule: Schedule) -> list[tuple[int, int]]:
    """(block, step) of every take: each is the start of a bar in the history."""
    return [(block, number) for number in range(len(schedule.steps)) for block in schedule.taken(number)]


def test_a_paged_stages_table_is_what_attention_was_given(small):
    class OtherPadding(BlockTableCache):
        def padded_row(self, blocks):
            return [blocks[i] if i < len(blocks) else 6 for i in range(self.max_blocks)]

    recorded = teach.record_schedule(OtherPadding, small, PROMPTS, PARAMS, **SIZES)
    assert [step.table for step in recorded.steps[:4]] == [(), (), ((0, 6), (1, 2)), ((0, 3), (1, 2))]
    view = teach.block_view(recorded)
    assert "The block table as attention gets it, [2, 2]; hatched: never used" in view.texts(2)
    assert "block 0, slot 3" in view.texts(2)
    [padding] = [cell for panel in view.frames[2].panels for cell in panel.cells if cell.hatched]
    assert padding.text == 6


@pytest.mark.slow
def test_text_plain_is_the_whole_contract(schedule):
    view = teach.block_view(schedule)
    assert view._repr_mimebundle_()[0]["text/plain"] == CONTRACT.format(stage="s01_naive_cat")


def test_a_large_pool_has_a_history_without_text():
    many = Schedule("hand made", 200, 2, 2, (1,), (step({0: (199,)}),))
    history = teach.block_view(many).frames[0].panels[-1]
    assert not history.rows and history.cells[0].text == ""
    assert history.cells[0].tooltip == "block 199: sequence 0, steps 0 to 0"


def test_what_is_still_held_at_the_end_is_said_and_drawn():
    view = teach.block_view(schedule_of(step({0: (0,)}), step({0: (0, 2)}, num_tokens=3)))
    assert repr(view).endswith("2 blocks in use at most, 0 taken that another had before, 2 free at the end")
    assert "block 2: sequence 0, steps 1 to 1" in [cell.tooltip for cell in view.frames[0].panels[-1].cells]


def test_saved_and_loaded_it_is_the_same(schedule, tmp_path):
    path = tmp_path / "schedule.json"
    schedule.save(path)
    assert Schedule.load(path) == schedule
    assert repr(teach.block_view(teach.Schedule.load(path))) == repr(teach.block_view(schedule))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting"),
        ("[]", "schedule.json"),
        ('{"format": "roseinfer schedule 2"}', "format is not 'roseinfer schedule 1'"),
        ('{"format": "roseinfer schedule 1"}', "steps"),
    ],
    ids=["cut off", "a list", "another format", "no steps"],
)
def test_a_file_that_is_no_schedule_is_refused(tmp_path, text, says):
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"no schedule that Schedule.save wrote.*{says}|{says}"):
        Schedule.load(path)


def test_an_unknown_key_is_refused_and_a_missing_file_named(schedule, tmp_path):
    path = tmp_path / "schedule.json"
    schedule.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    with pytest.raises(ValueError, match="colour"):
        Schedule.load(path)
    with pytest.raises(FileNotFoundError):
        Schedule.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (step({0: (0,), 1: (0,)}), "held twice"),
        (step({0: (4,)}), r"0\.\.3"),
        (step({3: (0,)}), "sequence 3 is none of the 3 prompts"),
        (step({0: (0,)}, freed=(1,)), r"\[1\] hold no blocks"),
        (step({0: (0,)}, num_tokens=3), "3 tokens of sequence 0 do not fit"),
        (replace(step({0: (0,)}), kind="pause"), "kind must be one of prefill, decode, got 'pause'"),
        (step({0: (0.5,)}), "must be integers"),
    ],
    ids=["twice", "outside", "unknown", "freed", "too full", "kind", "fraction"],
)
def test_steps_that_contradict_themselves_are_refused(bad, says):
    with pytest.raises(ValueError, match=f"step 1.*{says}"):
        schedule_of(step({0: (0,)}), bad)


def test_bad_arguments_are_refused(small, schedule):
    with pytest.raises(ValueError, match="prompts must hold at least one"):
        teach.record_schedule(NaiveCat, small, [], PARAMS, **SIZES)
    with pytest.raises(ValueError, match="params"):
        teach.record_schedule(NaiveCat, small, PROMPTS, PARAMS[:1], **SIZES)
    with pytest.raises(ValueError, match="num_blocks=1"):
        teach.record_schedule(VectorizedGather, small, PROMPTS, PARAMS, **{**SIZES, "num_blocks": 1})
    with pytest.raises(ValueError, match="block_size"):
        teach.record_schedule(BlockTableCache, small, PROMPTS, PARAMS, **{**SIZES, "block_size": 0})
    with pytest.raises(ValueError, match="schedule must be a Schedule"):
        teach.block_view(asdict(schedule))
    with pytest.raises(ValueError, match="at least one step"):
        schedule_of()
