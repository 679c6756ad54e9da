"""What the host does in a decode step: which spans count, which steps, and how they add up. No time is judged."""

from __future__ import annotations

import json

import pytest

from roseinfer.bench.host import decode_steps, host_times
from roseinfer.bench.settings import Host
from roseinfer.engine.config import STEP_TOKENS
from roseinfer.profiling import span


def run(*names: str) -> None:
    for name in names:
        with span(f"roseinfer.engine.{name}"):
            with span("roseinfer.model.forward"):
                pass


def test_the_prefill_and_the_last_step_do_not_count():
    step = ("schedule", "prepare", "forward", "sample", "commit", "detokenise")
    steps = decode_steps(lambda: [run(*step) for _ in range(5)], max_tokens=5)
    assert len(steps) == 3
    for one in steps:
        assert one.keys() == {*step, "planning", "rest", "step"}
        assert one["planning"] == one["schedule"] + one["prepare"] + one["commit"]
        assert one["rest"] == one["step"] - sum(one[name] for name in step) and one["rest"] > 0


def test_every_step_of_every_batch_size_is_kept():
    result = host_times(Host(batch_sizes=[1, 3], prompt_len=4, max_tokens=6, repeats=2, device="cpu"))
    assert [row["batch_size"] for row in result.rows] == [1, 3]
    assert [s["batch_size"] for s in result.samples] == [1] * 8 + [3] * 8  # 6 tokens: 4 steps, twice
    data = json.loads(result.to_json())
    assert data["samples"] == result.samples and {"host", "versions", "commit", "arguments"} <= data.keys()
    lines = result.text().splitlines()
    shown = ("schedule", "prepare", "commit", "planning", "detokenise", "rest", "step")
    assert lines[0].split() == ["batch", *(w for n in shown for w in (n, "us"))] and len(lines) >= 5


@pytest.mark.slow
def test_all_prompts_are_one_prefill_however_long():
    assert 5 * 220 > STEP_TOKENS
    result = host_times(Host(batch_sizes=[5], prompt_len=220, max_tokens=4, repeats=1, device="cpu"))
    assert len(result.samples) == 2
