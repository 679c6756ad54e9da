"""Lesson 04: the phases of a step, and the picture of the pool."""

from __future__ import annotations

import pytest

from course import teach
from course.teach.lesson04.phase_shares import per_step
from roseinfer.generate import begin, decode_step
from roseinfer.profiling import Trace
from roseinfer.profiling.traces.phases import device_phases
from roseinfer.sequence import SamplingParams
from stages import NaiveCat, VectorizedGather

GATHER = "roseinfer.decode_step_sessions.build_batched_past"
FORWARD = "roseinfer.model.forward"
APPEND = "roseinfer.kv.append_token"

# phase_shares


def test_phases_and_the_rest_make_the_step(small):
    table = teach.phase_shares(VectorizedGather, small, (1, 3), prompt_len=5, steps=2)
    calls = 2 * small.config.num_layers
    assert repr(table).splitlines()[0] == "s04_vectorized_gather: one decode step by phase"
    assert table.df[["batch", "aten::index", "aten::index_put_"]].to_numpy().tolist() == [
        [1, calls, calls],
        [3, calls, calls],
    ]
    parts = table.df[["gather ms", "forward ms", "append ms", "unlabelled ms"]]
    assert (parts > 0).all(axis=None)
    assert parts.sum(axis=1).tolist() == pytest.approx(table.df["step ms"].tolist())
    labelled = parts.drop(columns="unlabelled ms").sum(axis=1)
    assert (table.df["forward ms"] / labelled).tolist() == pytest.approx(table.df["forward share"].tolist())
    assert "forward ms" not in repr(table) and "forward ms" in table.to_html()


def test_phases_of_a_stage_that_copies(small):
    table = teach.phase_shares(NaiveCat, small, [2], prompt_len=3, steps=1)
    assert table.df.loc[0, ["aten::index", "aten::index_put_"]].tolist() == [0, 0]


def event(name, start, dur, cat, tid=1):
    return {"ph": "X", "name": name, "ts": start, "dur": dur, "cat": cat, "tid": tid, "pid": 0}


@pytest.fixture
def gpu_trace():
    """Two steps of 100 us on the host. On the device: gather 5, forward 40, append 4, 1 without a label."""
    events = []
    for step, start in enumerate((1000, 2000)):
        events += [
            event(f"ProfilerStep#{step}", start, 100, "user_annotation"),
            event(GATHER, start + 5, 20, "user_annotation"),
            event(FORWARD, start + 30, 30, "user_annotation"),
            event(APPEND, start + 62, 18, "user_annotation"),
            event(GATHER, start + 10, 12, "gpu_user_annotation", tid=7),
            event("gather_kernel", start + 10, 2, "kernel", tid=7),
            event("gather_kernel", start + 19, 3, "kernel", tid=7),
            event(FORWARD, start + 35, 40, "gpu_user_annotation", tid=7),
            event("gemm", start + 35, 40, "kernel", tid=7),
            event("copy elsewhere", start + 40, 1, "gpu_memcpy", tid=9),
            event(APPEND, start + 80, 10, "gpu_user_annotation", tid=7),
            event("copy", start + 80, 4, "gpu_memcpy", tid=7),
        ]
    return Trace({"traceEvents": events, "roseinfer": {"steps": 2}})


def test_device_time_of_a_gpu_trace(gpu_trace):
    device = per_step(device_phases(gpu_trace))
    assert [device[f"{part} ms"] for part in ("gather", "forward", "append", "unlabelled", "step")] == pytest.approx(
        [0.005, 0.040, 0.004, 0.001, 0.050]
    )
    assert device["forward share"] == pytest.approx(40 / 49)


# draw_pool_gather


def test_the_picture_says_where_padding_is_read(small):
    stage = VectorizedGather(small, num_blocks=8, block_size=4)
    seqs = begin(stage, [[5] * 6, [6] * 3, [7] * 5], SamplingParams(max_tokens=9, ignore_eos=True))
    for _ in range(5):
        decode_step(stage, seqs)
    picture = teach.draw_pool_gather(stage, seqs)
    text = repr(picture)
    assert "a pool of 8 blocks with 4 slots holds 3 sequences of [11, 8, 10] tokens" in text
    assert "sequence 1: [2, 2, 2, 2, 5, 5, 5, 5, 0, 0, 0]" in text
    assert "29 tokens of content and 4 of padding, 3 of it read from block 0." in text
    assert picture.png.startswith(b"\x89PNG")
