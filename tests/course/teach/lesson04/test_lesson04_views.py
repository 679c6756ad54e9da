"""Lesson 04: the phases of a step, and the picture of the pool."""

from __future__ import annotations

import pytest

from course import teach
from roseinfer.generate import begin, decode_step
from roseinfer.profiling import Trace
from roseinfer.profiling.traces.phases import device_phases
from roseinfer.sequence import SamplingParams
from stages import VectorizedGather

GATHER = "roseinfer.decode_step_sessions.build_batched_past"
FORWARD = "roseinfer.model.forward"
APPEND = "roseinfer.kv.append_token"


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
    device = device_phases(gpu_trace)
    assert {part: samples[0] for part, samples in device.items()} == pytest.approx(
        {"gather": 0.005, "forward": 0.040, "append": 0.004, "step": 0.050}
    )


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
