"""teach.timeline: its lanes, the gaps it names, and what its page holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from trace_cases import APPEND, BUILD, FORWARD, STEP, event, toy_step, two_gpu_steps

from roseinfer import teach
from roseinfer.display.gaps import find_gaps
from roseinfer.profiling import Trace, capture

WIDTH = re.compile(r"left: ([\d.]+)%; width: ([\d.]+)%")


def trace_of(*events: dict) -> Trace:
    return Trace({"traceEvents": list(events)})


def op(name: str, ts: float, dur: float) -> dict:
    return event(name, ts, dur, cat="cpu_op")


def kernel(name: str, ts: float, dur: float) -> dict:
    return event(name, ts, dur, cat="kernel", pid=0, tid=7)


def page(view) -> str:
    return view._repr_mimebundle_()["text/html"]


def data_of(view) -> dict:
    """What the script is given."""
    call = re.search(r'\)\("rose-zoom-\w+", (\{.*\})\)</script>', page(view), re.DOTALL)
    return json.loads(call[1])


class Tags(HTMLParser):
    """Every tag is closed, in order, and none of them is one that JupyterLab drops with its text kept."""

    def __init__(self):
        super().__init__()
        self.open, self.titles = [], []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("svg", "canvas", "iframe")
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


HOST_ONLY = [event(STEP, 0, 100), event(BUILD, 0, 40), event(APPEND, 60, 40)]


def test_text_plain_has_lanes_and_the_order_of_spans():
    view = teach.timeline(capture(toy_step(), steps=2, warmup=1), steps=2)
    plain = """\
Timeline of 2 steps
host: steps   total
host: spans   build_batched_past, forward, append_token
host: ops     bars"""
    assert repr(view) == view._repr_mimebundle_()["text/plain"] == plain


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
    assert "append_token</td>" in page(view) and "34.0%" in page(view)
    assert "none in this trace" in page(view)


def test_ops_of_another_thread_do_not_fill_a_gap():
    other = {**op("aten::mm", 0, 100), "tid": 2}
    view = teach.timeline(trace_of(*HOST_ONLY, other))
    assert sum(gap.dur for gap in view.host_gaps) == 100_000


def test_the_devices_idle_time_is_named_after_the_innermost_op_or_span():
    trace = trace_of(
        *HOST_ONLY, op("aten::copy_", 10, 70), op("aten::empty", 12, 2), op("aten::add", 90, 5),
        kernel("gemm", 5, 5), kernel("gemm", 75, 20),
    )  # fmt: skip
    view = teach.timeline(trace)
    # idle: 0..5 before anything, 10..75 under the copy, 95..100 at the end of append
    assert [(gap.start // 1000, gap.end // 1000, gap.during.name) for gap in view.device_gaps] == [
        (0, 5, BUILD), (10, 75, "aten::copy_"), (95, 100, APPEND),
    ]  # fmt: skip
    assert view.says()[1] == "device idle 75% of the step, longest gap 0.065 ms under aten::copy_"


def test_overlapping_streams_are_busy_once():
    other = event("memcpy", 10, 50, cat="gpu_memcpy", pid=0, tid=9)
    view = teach.timeline(trace_of(*HOST_ONLY, kernel("gemm", 0, 40), other))
    assert [(gap.start, gap.end) for gap in view.device_gaps] == [(60_000, 100_000)]
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


def test_the_static_picture_is_there_without_the_script():
    view = teach.timeline(Trace(two_gpu_steps()), steps=1)
    static = page(view).partition("<script>")[0]
    parser = Tags()
    parser.feed(static + "</div>")  # the card's
    assert parser.open == []
    # build, forward and the nested attention of the one step, 100 us long, in per cent
    spans = [(float(left), float(width)) for left, width in WIDTH.findall(static)]
    assert {(10.0, 30.0), (40.0, 50.0), (45.0, 20.0)} <= set(spans)
    assert all(left + width <= 100.01 for left, width in spans if left < 99)
    for lane in ("host: steps", "host: spans", "host: ops", "device: spans", "device: kernels"):
        assert f">{lane}</span>" in static
    assert "device idle" in static and ">forward<" in static


def test_ops_that_lie_close_are_one_bar_in_the_static_picture_and_all_in_the_data():
    ops = [op("aten::copy_", ts, 0.9) for ts in range(100)]
    view = teach.timeline(trace_of(event(STEP, 0, 1000), *ops))
    static = page(view).partition("<script>")[0]
    assert static.count("position: absolute") == 2  # the step, and one bar of ops
    lanes = data_of(view)["lanes"]
    assert [len(lane["bars"]) for lane in lanes] == [1, 100]


def test_the_scripts_data_are_exact_and_cannot_end_the_script():
    evil = op('</script><b onload="x">', 20, 5)
    view = teach.timeline(trace_of(*HOST_ONLY, evil))
    assert page(view).count("</script>") == 1
    data = data_of(view)
    assert data["whole"] == 100_000 and data["names"][-1] == evil["name"]
    assert data["lanes"][1] == {"named": True, "bars": [[0, 40_000, 1], [60_000, 40_000, 2]]}
    assert len(data["paints"]) == len(data["names"])


def test_span_names_are_escaped():
    view = teach.timeline(trace_of(event("roseinfer.<i>", 0, 100)))
    assert "<i>" not in page(view).partition("<script>")[0]


def test_the_same_trace_gives_the_same_page_and_two_traces_two_ids():
    one, two = teach.timeline(Trace(two_gpu_steps())), teach.timeline(Trace(two_gpu_steps()), steps=2)
    ids = [re.search(r"rose-zoom-\w+", page(view))[0] for view in (one, two)]
    assert page(one) == page(teach.timeline(Trace(two_gpu_steps()))) and ids[0] != ids[1]


def test_other_prefixes_and_bad_arguments():
    trace = Trace(two_gpu_steps())
    assert "forward" in repr(teach.timeline(trace, prefix="roseinfer.model"))
    assert FORWARD.endswith("forward")
    for steps in (0, 3, True, "1"):
        with pytest.raises(ValueError, match="steps must be an integer from 1 to 2"):
            teach.timeline(trace, steps=steps)
    with pytest.raises(ValueError, match="prefix='vllm'"):
        teach.timeline(trace, prefix="vllm")
    with pytest.raises(ValueError, match="trace must be a Trace"):
        teach.timeline(two_gpu_steps())
