"""Lesson 16: lanes of host and device by a model's clock, exactly, and the pictures of them."""

from __future__ import annotations

import pytest
from oracles import small_model

from course import teach
from course.teach.lesson16.step_lanes import COMMIT, COPY, DEVICE, HOST, PLAN, UPLOAD
from roseinfer.overlap import OwnClock
from roseinfer.reference import reference_generate
from roseinfer.sequence import Sequence
from stages import Graphs, Overlap

MODEL = small_model()
WORK = teach.work(MODEL, [(0, 5, 4)] * 2)
SPEEDS = teach.Speeds(plan=1, commit=2, device=5)


class TakingTurns(Overlap):
    def step(self):
        super().step()
        return self.finish()


def make(stage_class=Overlap, **options):
    return stage_class(MODEL, num_blocks=20, block_size=8, max_num_seqs=4, **options)


def of(lanes, lane):
    return [(span.what, span.step, span.begin, span.end) for span in lanes.spans if span.lane == lane]


def test_in_turn_the_device_waits_for_the_host():
    lanes = teach.record_lanes(make(TakingTurns), WORK, SPEEDS)
    assert of(lanes, DEVICE) == [("compute", k, 1 + 8 * k, 6 + 8 * k) for k in range(4)]
    assert of(lanes, HOST)[:3] == [(PLAN, 0, 0, 1), (COMMIT, 0, 6, 8), (PLAN, 1, 8, 9)]
    assert (lanes.end, lanes.bubbles, lanes.busy(HOST)) == (32, 9, 12)
    assert lanes.tokens == [[8, 16, 24, 32]] * 2 and lanes.planned == [0, 0]
    assert (lanes.latency(0), lanes.gap(1), lanes.sizes) == (32, 8, [10, 2, 2, 2])


def test_one_step_ahead_it_does_not():
    lanes = teach.record_lanes(make(), WORK, SPEEDS)
    assert of(lanes, DEVICE) == [("compute", k, 1 + 5 * k, 6 + 5 * k) for k in range(4)]
    assert of(lanes, HOST)[:4] == [(PLAN, 0, 0, 1), (PLAN, 1, 1, 2), (COMMIT, 0, 6, 8), (PLAN, 2, 8, 9)]
    assert (lanes.end, lanes.bubbles, lanes.gap(0)) == (23, 0, 5)
    assert lanes.outputs == reference_generate(MODEL, [prompt for _, prompt in WORK], 4)


@pytest.mark.parametrize(("copy_engine", "lane", "end"), [(False, DEVICE, 27), (True, COPY, 24)])
def test_a_copy_engine_hides_the_upload_and_no_more(copy_engine, lane, end):
    speeds = teach.Speeds(plan=1, commit=2, device=5, upload=1, copy_engine=copy_engine)
    lanes = teach.record_lanes(make(), WORK, speeds)
    uploads = [span for span in of(lanes, lane) if span[0] == UPLOAD]
    second = 2 if copy_engine else 7  # as soon as it is launched, or when the device has time
    assert uploads[:2] == [(UPLOAD, 0, 1, 2), (UPLOAD, 1, second, second + 1)]
    assert lanes.end == end


def test_arrivals_and_stops_are_the_clocks_and_the_stage_is_left_as_it_was():
    whole = reference_generate(MODEL, [prompt for _, prompt in WORK], 4)
    stage = make()
    device = stage.device
    late = [(WORK[0][0], WORK[0][1]), (teach.work(MODEL, [(40, 5, 4)])[0][0], WORK[1][1])]
    lanes = teach.record_lanes(stage, late, SPEEDS, stops=(whole[0][1],))
    assert lanes.outputs[0] == whole[0][:2] and lanes.planned[1] == 40
    assert stage.device is device and not {"schedule", "commit"} & stage.__dict__.keys()


def test_by_the_wall_the_text_has_no_times():
    lanes = teach.record_lanes(make(device=OwnClock(lambda num_tokens: 0.001)), WORK, host_ms=0.1)
    assert lanes.outputs == reference_generate(MODEL, [prompt for _, prompt in WORK], 4)
    assert repr(teach.draw_lanes(lanes)) == "s16_overlap: 4 steps, 8 tokens"


@pytest.mark.parametrize(
    ("stage", "message"), [(Graphs, "must hand its steps to a device"), (Overlap, "must have no work before the run")]
)
def test_what_cannot_be_recorded_is_refused(stage, message):
    stage = make(stage)
    if isinstance(stage, Overlap):
        stage.add(Sequence([1, 2]))
    with pytest.raises(ValueError, match=message):
        teach.record_lanes(stage, WORK, SPEEDS)


@pytest.mark.slow
def test_pictures_say_exactly_what_a_models_clock_says():
    runs = [teach.record_lanes(make(cls), WORK, SPEEDS) for cls in (TakingTurns, Overlap)]
    chart = teach.draw_lanes(*runs, end=20)
    assert repr(chart).splitlines() == [
        "TakingTurns: 4 steps, 8 tokens in 32 ms, bubbles of 9 ms",
        "s16_overlap: 4 steps, 8 tokens in 23 ms, bubbles of 0 ms",
    ]
    assert chart.png
    by = teach.draw_lanes_by({5: runs, 4: runs}, "device")
    assert repr(by).splitlines()[0] == "device 5:" and by.spec["params"][0]["value"] == 5
    with pytest.raises(ValueError, match="at least one Lanes"):
        teach.draw_lanes()
