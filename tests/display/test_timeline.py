"""teach.timeline: its lanes, the gaps it names, and what its chart holds."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image
from trace_cases import APPEND, BUILD, FORWARD, STEP, event, toy_step, two_gpu_steps

from course import teach
from roseinfer.display.chart import PAGE_WIDTH, PNG_SCALE, VEGA_LITE
from roseinfer.display.timeline.coverage import coverage
from roseinfer.display.timeline.gaps import find_gaps
from roseinfer.display.timeline.timeline import BARS_WIDTH, LABELS, LANE, MOST_BARS, WORK_COLOUR, Timeline
from roseinfer.profiling import Trace, capture

pytestmark = pytest.mark.slow


def trace_of(*events: dict) -> Trace:
    return Trace({"traceEvents": list(events)})


def op(name: str, ts: float, dur: float) -> dict:
    return event(name, ts, dur, cat="cpu_op")


def kernel(name: str, ts: float, dur: float) -> dict:
    return event(name, ts, dur, cat="kernel", pid=0, tid=7)


def drawn_by(view) -> list[list[tuple[str, float, float]]]:
    """(name, from, to) of each lane's bars, in ms, in time order."""
    lanes = view.bars.sort_values("from").groupby("lane")
    return [list(lane[["name", "from", "to"]].itertuples(index=False, name=None)) for _, lane in lanes]


HOST_ONLY = [event(STEP, 0, 100), event(BUILD, 0, 40), event(APPEND, 60, 40)]


def test_text_plain_has_lanes_and_the_order_of_spans():
    view = teach.timeline(capture(toy_step(), steps=2, warmup=1), steps=2)
    plain = """\
Timeline of 2 steps
host: steps   total
host: spans   build_batched_past, forward, append_token
host: ops     bars"""
    assert repr(view) == view._repr_mimebundle_()[0]["text/plain"] == plain


def test_text_plain_is_the_same_with_a_device():
    data = two_gpu_steps()
    host_only = {"traceEvents": [e for e in data["traceEvents"] if e["pid"] != 0]}
    assert repr(teach.timeline(Trace(data))) == repr(teach.timeline(Trace(host_only)))


def test_the_hosts_time_outside_ops_is_summed_and_the_longest_gap_named():
    trace = trace_of(*HOST_ONLY, op("aten::copy_", 0, 38), op("aten::add", 42, 20), op("aten::copy_", 96, 4))
    view = teach.timeline(trace)
    # 38..42 between the phases (4 us), 62..96 in append (34 us)
    assert view.says() == ["Python (the host in no op) 38% of the step, longest gap 0.034 ms inside append_token"]
    assert [(gap.dur, gap.during.name) for gap in view.host_gaps] == [(4000, STEP), (34000, APPEND)]
    assert "34.0%: 0.034 ms; gaps: 1, longest 0.034 ms" in json.dumps(view.spec)
    assert "no device in this trace" in view.alt


def test_ops_of_another_thread_do_not_fill_a_gap():
    other = {**op("aten::mm", 0, 100), "tid": 2}
    view = teach.timeline(trace_of(*HOST_ONLY, other))
    assert sum(gap.dur for gap in view.host_gaps) == 100_000


def test_the_devices_idle_time_is_named_after_the_innermost_op_or_span():
    trace = trace_of(
        *HOST_ONLY,
        op("aten::copy_", 10, 70),
        op("aten::empty", 12, 2),
        op("aten::add", 90, 5),
        kernel("gemm", 5, 5),
        kernel("gemm", 75, 20),
    )
    view = teach.timeline(trace)
    # idle: 0..5 before anything, 10..75 under the copy, 95..100 at the end of append
    assert [(gap.ts // 1000, gap.end // 1000, gap.during.name) for gap in view.device_gaps] == [
        (0, 5, BUILD),
        (10, 75, "aten::copy_"),
        (95, 100, APPEND),
    ]
    assert view.says()[1] == "device idle 75% of the step, longest gap 0.065 ms under aten::copy_"


def test_overlapping_streams_are_busy_once():
    other = event("memcpy", 10, 50, cat="gpu_memcpy", pid=0, tid=9)
    view = teach.timeline(trace_of(*HOST_ONLY, kernel("gemm", 0, 40), other))
    assert [(gap.ts, gap.end) for gap in view.device_gaps] == [(60_000, 100_000)]
    assert [lane.label for lane in view.device] == ["device 0, stream 7: kernels", "device 0, stream 9: kernels"]


def test_time_between_two_steps_is_no_spans():
    view = teach.timeline(Trace(two_gpu_steps()), steps=2)
    assert view.says()[0].endswith("longest gap 0.154 ms between spans")
    assert view.says()[1].startswith("device idle 75% of the 2 steps")


def test_a_gap_covered_by_halves_is_named_after_what_holds_both():
    first, second, both = (trace_of(event(*span)).slices[0] for span in (("a", 0, 50), ("b", 50, 50), ("c", 0, 100)))
    [gap] = find_gaps([], [both, first, second], 0, 100_000)
    assert gap.during == both
    assert find_gaps([], [first], 0, 100_000)[0].during is None  # half of it is not more than half
    assert find_gaps([both], [first], 0, 100_000) == []


def test_a_step_without_a_gap_has_no_longest_one():
    view = teach.timeline(trace_of(event(STEP, 0, 10), op("aten::mm", 0, 10)))
    assert view.says() == ["Python (the host in no op) 0% of the step"]


def test_every_lane_and_every_gap_is_drawn():
    view = teach.timeline(Trace(two_gpu_steps()))
    # build, forward and the nested attention of the one step, 100 us long
    drawn = drawn_by(view)
    assert drawn[1] == [(BUILD, 0.01, 0.04), (FORWARD, 0.04, 0.09)]
    assert drawn[2] == [("roseinfer.model.attention", 0.045, 0.065)]
    labels = ["host: steps", "host: spans", "host: spans", "host: ops", "host: no op"]
    labels += ["device: spans", "device: kernels", "device: idle"]
    assert view.spec["vconcat"][0]["layer"][0]["encoding"]["y"]["axis"]["labelExpr"].startswith(json.dumps(labels))
    assert len(drawn) == len(labels)
    gaps = [(gap.name, (gap.ts - view.start) / 1e6, (gap.end - view.start) / 1e6) for gap in view.host_gaps]
    assert drawn[4] == gaps


def test_the_chart_is_a_picture_too_and_fits_the_page():
    view = teach.timeline(Trace(two_gpu_steps()))
    bundle, metadata = view._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["width"] <= PAGE_WIDTH
    assert "device: kernels" in metadata["image/png"]["alt"] and "device idle" in metadata["image/png"]["alt"]
    assert bundle[VEGA_LITE]["$schema"].endswith("v5.json")


def test_of_too_many_ops_the_shortest_are_left_out_and_the_spec_stays_small():
    ops = [op("aten::copy_", ts, 0.5 if ts % 2 else 0.9) for ts in range(2 * MOST_BARS)]
    view = teach.timeline(trace_of(event(STEP, 0, 2 * MOST_BARS), *ops))
    assert len(view.host[-1].slices) == 2 * MOST_BARS
    bars = drawn_by(view)[1]
    assert len(bars) == MOST_BARS and {round(end - start, 4) for _, start, end in bars} == {0.0009}
    assert len(json.dumps(view.spec)) < 150_000


def test_the_same_trace_gives_the_same_chart():
    one, two = (teach.timeline(Trace(two_gpu_steps()), steps=2).spec for _ in range(2))
    assert one == two


def test_other_prefixes_and_bad_arguments():
    trace = Trace(two_gpu_steps())
    assert "forward" in repr(teach.timeline(trace, prefix="roseinfer.model"))
    assert FORWARD.endswith("forward")
    for steps in (0, 3, True, "1"):
        with pytest.raises(ValueError, match="steps must be an integer from 1 to 2"):
            teach.timeline(trace, steps=steps)
    with pytest.raises(ValueError, match="prefix='vllm'"):
        teach.timeline(trace, prefix="vllm")
    with pytest.raises(ValueError, match="no span .cat 'user_annotation'.: label a step"):
        teach.timeline(trace_of(op("aten::add", 0, 1)))
    with pytest.raises(ValueError, match="trace must be a Trace"):
        teach.timeline(two_gpu_steps())


FILES = [("t.png", b"\x89PNG"), ("t.SVG", b"<svg"), ("t.pdf", b"%PDF"), ("t.html", b"<!DOC")]


@pytest.mark.parametrize("name, start", FILES)
def test_a_chart_is_written(tmp_path, name, start):
    teach.timeline(Trace(two_gpu_steps())).save(tmp_path / name)
    written = (tmp_path / name).read_bytes()
    assert written.startswith(start) and b'src="http' not in written
    with pytest.raises(ValueError, match=r"path must end in .png, .svg, .pdf, .html, got '.*t.txt'"):
        teach.timeline(Trace(two_gpu_steps())).save(tmp_path / "t.txt")


def drawn_shade(view: Timeline, lane: int) -> float:
    """Darkness of the middle of a lane in the picture, against the colour of an op's bar."""
    picture = Image.open(io.BytesIO(view.png)).convert("L")
    left, middle = 8 + LABELS, 52 + LANE * lane  # where the chart begins, and a lane of it, under its two titles
    x = range(round(PNG_SCALE * (left + 2)), round(PNG_SCALE * (left + BARS_WIDTH - 2)))
    dark = [255 - picture.getpixel((column, round(PNG_SCALE * middle))) for column in x]
    return sum(dark) / len(dark) / (255 - int(WORK_COLOUR[1:3], 16))


@pytest.mark.parametrize(("num_ops", "share"), [(800, 0.1), (800, 0.9), (2 * MOST_BARS, 0.5)])
def test_a_crowded_lane_is_as_dark_as_its_ops_cover_it(num_ops, share):
    ops = [op("aten::copy_", 10 * i, 10 * share) for i in range(num_ops)]
    view = teach.timeline(trace_of(event(STEP, 0, 10 * num_ops), *ops))
    assert drawn_shade(view, lane=1) == pytest.approx(share, abs=0.05)


def test_coverage_counts_time_once_and_names_what_covers_most():
    slices = trace_of(event("a", 0, 3), event("b", 2, 5), event("c", 12, 1), event("c", 39, 9)).slices
    assert coverage(slices, 0, 40_000, 4) == [
        (0, 10_000, "b", 0.7),
        (10_000, 20_000, "c", 0.1),
        (30_000, 40_000, "c", 0.1),
    ]
    assert coverage(slices, 0, 40_000, 1) == [(0, 40_000, "b", 0.225)]
    assert coverage(slices[:1], 1_000, 1_003, 7) == [(1_000 + i, 1_001 + i, "a", 1.0) for i in range(3)]  # no time lost


def test_spans_that_end_alike_keep_what_tells_them_apart():
    from roseinfer.display.timeline.lanes import short_names

    names = ["enc.step", "dec.step", "step", "a.dec.step", "roseinfer.kv.append_token", "enc.step"]
    assert short_names(names) == {
        "enc.step": "enc.step",
        "dec.step": "dec.step",
        "step": "step",
        "a.dec.step": "a.dec.step",
        "roseinfer.kv.append_token": "append_token",
    }
    trace = Trace({"traceEvents": [event("loop", 0, 90), event("enc.step", 10, 20), event("dec.step", 40, 20)]})
    view = teach.timeline(trace, prefix="")
    assert "spans   enc.step, dec.step" in repr(view)
    assert '"enc.step": "enc.step"' in json.dumps(view.spec).replace('\\"', '"')
