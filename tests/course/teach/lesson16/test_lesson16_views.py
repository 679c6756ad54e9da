"""Lesson 16: lanes of host and device by a model's clock, exactly, and the pictures of them."""

from __future__ import annotations

import re

import pytest
from oracles import small_model

from course import teach
from course.teach.lesson16 import lane_charts
from course.teach.lesson16.step_lanes import COMMIT, COPY, DEVICE, HOST, PLAN, UPLOAD, Lanes, LaneSpan
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


def test_the_gain_is_computed_and_marked():
    chart = teach.draw_overlap_gain({"here": [(0.5, 1.4)]}, {"a model": 0.25})
    assert repr(chart) == (
        "computed: (host + device) / max(host, device)\na model: host / device 0.250, 1.250 times as fast"
    )
    assert chart.png


def test_a_race_is_run_on_devices_with_a_clock_and_shows_a_floor():
    stages = [make(cls, device=OwnClock(lambda num_tokens: 0.001)) for cls in (TakingTurns, Overlap)]
    assert repr(teach.race_lanes(stages, WORK, device_ms=1, runs=2)).splitlines() == [
        "8 tokens, device 1 ms per step, host 0 ms more",
        "steps        tokens",
        "-----------  ------",
        "TakingTurns       8",
        "s16_overlap       8",
    ]


def test_a_race_is_for_those_that_make_the_same_tokens():
    class Another(Overlap):
        def commit(self, seqs, tokens):
            return super().commit(seqs, [(token + 1) % 97 for token in tokens])

    with pytest.raises(AssertionError, match="Another makes other tokens than s16_overlap"):
        teach.race_lanes([make(), make(Another)], WORK, device_ms=1)


def test_what_is_said_of_overlap_on_shared_cores_follows_from_the_times():
    spans = [
        LaneSpan("host", "plan", 0, 0, 2),
        LaneSpan("device", "compute", 0, 2, 5),
        LaneSpan("host", "commit", 0, 5, 6),
        LaneSpan("host", "plan", 1, 6, 8),
        LaneSpan("device", "compute", 1, 8, 11),
        LaneSpan("host", "commit", 1, 11, 12),
    ]
    lanes = Lanes("s16", False, spans, [0], [[6, 12]], [[1, 2]], [1, 1])
    slower, parts, most = teach.say_overlap_price({"s15": [0.008, 0.010, 0.009], "s16": [0.012]}, lanes).sentences
    assert slower == "A step of s15 takes 4.50 ms, one of s16 6.00 ms: 1.50 ms more."
    assert (
        "3.00 ms of a step are the host's (2.00 to plan and launch, 1.00 to commit), and 3.00 ms are computation"
        in parts
    )
    assert "at most ×2.00" in most
    assert "1.50 ms less" in teach.say_overlap_price({"s15": [0.012], "s16": [0.009]}, lanes).sentences[0]
    with pytest.raises(ValueError, match="seconds must be of two stages and lanes by the wall clock"):
        teach.say_overlap_price({"s15": [0.012]}, lanes)


def test_lanes_have_one_shade_a_kind_and_mark_every_bubble():
    run = teach.record_lanes(make(TakingTurns), WORK, SPEEDS)
    frame = lane_charts._frame({0: run}, 0, run.end)
    bubbles = frame[frame["what"] == lane_charts.BUBBLE]
    assert (bubbles["end"] - bubbles["begin"]).sum() == pytest.approx(run.bubbles) and len(bubbles) == 3
    [panel] = teach.draw_lanes(run).spec["vconcat"]
    encoding = panel["layer"][0]["encoding"]
    assert "opacity" not in encoding
    assert encoding["color"]["scale"]["domain"] == [PLAN, COMMIT, "compute", lane_charts.BUBBLE]
    assert len(set(encoding["color"]["scale"]["range"])) == 4


def test_every_measured_gain_is_inside_its_plot():
    measured = [(0.004, 0.6), (0.5, 1.4), (20.0, 2.4)]
    spec = teach.draw_overlap_gain({"here": measured}, {}).spec
    encoding = spec["layer"][0]["encoding"]
    for place, axis in enumerate("xy"):
        low, high = encoding[axis]["scale"]["domain"]
        assert all(low < point[place] < high for point in measured)


def test_a_device_that_computes_late_finds_inputs_that_were_overwritten():
    class OneBuffer(Overlap):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            self.sides = self.sides[0], self.sides[0]
            self.attended.zero_()

    whole = reference_generate(MODEL, [prompt for _, prompt in WORK], 4)
    late, shared = (teach.record_run(make(cls, device=teach.LateDevice()), WORK) for cls in (Overlap, OneBuffer))
    assert late.outputs == whole != shared.outputs


def test_runs_are_timed_by_name_after_one_that_is_not():
    stages = [make(TakingTurns), make()]
    calls = []
    stages[0].add = lambda seq, add=stages[0].add: (calls.append(seq), add(seq))
    times = teach.time_runs(stages, WORK, runs=3)
    assert list(times) == ["TakingTurns", "s16_overlap"] and [len(own) for own in times.values()] == [3, 3]
    assert len(calls) == 4 * len(WORK) and all(seconds > 0 for own in times.values() for seconds in own)


def test_lanes_have_no_colour_of_a_request():
    from course.teach.views import run_charts

    kinds = set(lane_charts.COLOURS) - {lane_charts.BUBBLE}
    assert not {lane_charts.COLOURS[kind] for kind in kinds} & set(run_charts.COLOURS.values())


def test_the_labels_of_the_time_are_equally_far_apart(tmp_path):
    lanes = teach.record_lanes(make(), WORK, SPEEDS)
    teach.draw_lanes(lanes, end=20).save(tmp_path / "lanes.svg")
    label = r'text-anchor="(\w+)" transform="translate\(([\d.]+),[\d.]+\)"[^>]*>(\d+)</text>'
    labels = re.findall(label, (tmp_path / "lanes.svg").read_text())
    assert labels[:11] == [("middle", str(49 * ms // 2), str(ms)) for ms in range(0, 21, 2)]
