"""Traces of a GPU report, trimmed: what tables, SQL and timeline need is still there."""

from __future__ import annotations

import pytest
import torch

from roseinfer.bench.gpu_report.traces import trimmed
from roseinfer.profiling import Trace, capture, span


@pytest.fixture(scope="module")
def trace() -> Trace:
    x = torch.ones(8)

    def step():
        with span("roseinfer.step"), span("roseinfer.add"):
            x.add(1).cumsum(0)

    return capture(step, steps=3)


def test_trimming_keeps_the_tables(trace: Trace):
    kept = Trace(trimmed(trace, 3))
    for table, same in ((trace.spans(), kept.spans()), (trace.ops("roseinfer.step"), kept.ops("roseinfer.step"))):
        assert table.df.equals(same.df)
    assert kept.op_counts() == trace.op_counts()
    query = "SELECT cat, name, dur FROM slice WHERE cat IN ('user_annotation', 'cpu_op') ORDER BY id"
    assert kept.sql(query).equals(trace.sql(query))
    assert kept.slices[0].ts < 10**9  # times start at 0
    assert kept.metadata == trace.metadata


def test_trimming_to_fewer_steps(trace: Trace):
    kept = Trace(trimmed(trace, 2))
    assert kept.count("roseinfer.step") == kept.count("aten::cumsum") == 2
    assert kept.metadata == trace.metadata | {"steps": 2}
    for steps in (0, 4):
        with pytest.raises(ValueError, match=f"steps must be an integer from 1 to 3, .*got {steps}"):
            trimmed(trace, steps)


def test_trimming_keeps_launches_and_kernels_of_a_gpu():
    def event(cat, name, ts, dur, ph="X", tid=1, **args):
        return {"ph": ph, "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": tid, "args": args}

    start = 7_000_000_000.125
    events = [
        event("Trace", "PyTorch Profiler (0)", start, 100),
        event("user_annotation", "ProfilerStep#3", start, 50),
        event("user_annotation", "roseinfer.step", start + 1, 40),
        event("python_function", "step.py(1): step", start + 2, 30),
        event("cuda_driver", "cuLaunchKernelEx", start + 3, 2, correlation=7, cbid=5),
        event("ac2g", "ac2g", start + 3, 0, ph="s"),
        event("gpu_user_annotation", "roseinfer.step", start + 5, 9, tid=7),
        event("kernel", "paged_decode_kernel", start + 5, 9, tid=7, correlation=7, grid=[8, 12, 1]),
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    ]
    capture_metadata = {"device": "NVIDIA H200", "torch": "2.11.0", "steps": 1}
    trace = Trace({"traceEvents": events, "traceName": "trace.json", "roseinfer": capture_metadata})
    data = trimmed(trace, 1)
    assert data.keys() == {"traceEvents", "roseinfer"}
    kept = Trace(data)
    assert [(e.cat, e.args) for e in kept.slices] == [
        ("user_annotation", None), ("user_annotation", None), ("cuda_driver", {"correlation": 7}),
        ("gpu_user_annotation", None), ("kernel", {"correlation": 7}),
    ]  # fmt: skip
    assert kept.spans().df.equals(trace.spans().df)
    assert [e["name"] for e in data["traceEvents"] if e["ph"] == "M"] == ["process_name"]
