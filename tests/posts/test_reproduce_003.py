"""Post 003 reproduced: signs of real timestamps, the host's share by a counting clock, and batches taking turns."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.engine import sizes as engine_sizes
from roseinfer.engine.config import EngineConfig
from roseinfer.models import GPT2
from roseinfer.posts import post003
from roseinfer.posts.data import post_facts, post_table
from roseinfer.posts.post003 import host_share as host
from roseinfer.posts.post003 import times
from roseinfer.posts.post003.batches_in_flight import take_turns
from roseinfer.posts.post003.measure import build_stage, host_shares, most_gain, record_times
from roseinfer.posts.report import PostReport, Setting
from roseinfer.profiling.clock import Clock
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from stages import LADDER, BlockTableCache, VectorizedGather

STAGES = {stage.name.split("_")[0]: stage for stage in LADDER}
QUICK = Setting(torch.device("cpu"), STAGES, quick=True)


@pytest.fixture(scope="module")
def report() -> PostReport:
    return post003.reproduce(QUICK)


def facts_of(report: PostReport) -> dict[str, object]:
    return {fact.what: fact for section in report.sections for fact in section.facts}


def grid(report: PostReport, title_start: str) -> list[list[object]]:
    (rows,) = [g.rows for s in report.sections for g in s.grids if g.title.startswith(title_start)]
    return rows


# Timestamps


@pytest.fixture
def counting() -> Clock:
    """Every look at it is one second later than the one before."""
    return map(float, itertools.count()).__next__


def test_timestamps_by_a_counting_clock(tiny: GPT2, counting: Clock):
    config = EngineConfig(model="tiny", num_blocks=1, max_num_seqs=1)
    seqs = [Sequence([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True)) for _ in range(2)]
    first, second = record_times(build_stage(VectorizedGather, tiny, config), seqs, counting)
    # The clock is looked at once more before a token is handed out: as the stage's call ends.
    assert [list(step.values()) for step in first.steps] == [[2, 3, 4, 6], [7, 8, 9, 11]]
    assert [list(step.values()) for step in second.steps] == [[12, 13, 14, 16], [17, 18, 19, 21]]
    assert first.timestamps(1) == {
        "arrival_ts": 0, "first_scheduled_ts": 2, "scheduled_ts": 7, "inference_begin_ts": 8, "inference_end_ts": 9,
        "finish_ts": 11,
    }  # fmt: skip
    assert (second.arrival_ts, second.first_token) == (1, 15)


def test_watching_does_not_change_the_tokens(tiny: GPT2):
    config = EngineConfig(model="tiny", num_blocks=2, max_num_seqs=2)
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    seqs = [Sequence(prompt, SamplingParams(max_tokens=4, ignore_eos=True)) for prompt in prompts]
    stage = build_stage(VectorizedGather, tiny, config)
    recorded = record_times(stage, seqs)
    assert [seq.output_ids for seq in seqs] == reference_generate(tiny, prompts, max_tokens=4)
    assert [len(request.steps) for request in recorded] == [4, 4, 4]
    assert stage.num_free_blocks == 2


def test_waiting_time_is_negative_as_printed(report: PostReport):
    facts = facts_of(report)
    assert {name: facts[name].verdict for name in post_table("003", "times")["name"]} == {
        "waiting_time": "explained", "scheduling2inference": "equal", "inference_time": "equal", "latency": "equal"
    }  # fmt: skip
    assert facts["waiting_time"].here == "first_scheduled_ts - arrival_ts"
    requests, tokens = times.PLACES + times.LATECOMERS, times.TOKENS
    assert grid(report, "Signs") == [
        ["waiting_time", requests, requests, 0],
        ["scheduling2inference", requests * tokens, 0, requests * tokens],
        ["inference_time", requests * tokens, 0, requests * tokens],
        ["latency", requests * tokens, 0, requests * tokens],
    ]


def test_the_latecomers_really_wait(report: PostReport):
    assert f"{times.LATECOMERS} of them wait until another has finished" in report.sections[0].text[1]
    requests = report.sections[0].samples["requests"]
    done = sorted(request["steps"][-1]["finish_ts"] for request in requests)
    started = sorted(request["steps"][0]["scheduled_ts"] for request in requests)
    assert started[times.PLACES - 1] < done[0] < started[times.PLACES]


def test_an_order_that_fits_neither_way_is_said():
    taken = [{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}]
    assert times.never_negative("a", "b", taken) == "neither"
    assert times.never_negative("a", "b", taken[:1]) == "b - a"
    assert times.never_negative("a", "b", taken[1:]) == "a - b"


# Host work


@pytest.mark.parametrize("stage_class", [VectorizedGather, BlockTableCache])
def test_host_work_is_what_lies_outside_the_forward(tiny: GPT2, counting: Clock, stage_class: type):
    config = EngineConfig(model="tiny", num_blocks=4, max_num_seqs=2)
    (share,) = host_shares([stage_class], tiny, config, prompt_len=4, steps=3, clock=counting)
    # The clock is looked at as the step begins, as the forward does, as it ends, and as the step ends.
    assert share.step_seconds == [3, 3, 3] and share.forward_seconds == [1, 1, 1]
    assert (share.stage, share.step, share.host, most_gain(share.step, share.host)) == (stage_class.name, 3, 2, 3)


def test_the_bound_of_the_posts_steps(report: PostReport):
    rows = {row[0]: row[1:] for row in grid(report, "The most that hiding")}
    for row in post_table("003", "steps").itertuples():
        share = row.host_ms / row.step_ms
        assert rows[f"computed from the post: {row.model} {row.dtype}"] == [f"{share:.1%}", f"×{1 / (1 - share):.3f}"]
    assert [name for name in rows if name.startswith("here: tiny, ")] == [
        f"here: tiny, {stage.name}" for stage in host.stages(QUICK)
    ]


def test_a_stage_whose_times_say_nothing_here_is_left_out():
    class Untimed(BlockTableCache):
        @classmethod
        def why_untimed(cls, device: torch.device) -> str:
            return "interpreted"

    setting = Setting(torch.device("cpu"), {"s04": VectorizedGather, "s06": BlockTableCache, "s07": Untimed})
    assert host.stages(setting) == [VectorizedGather, BlockTableCache]


# Batches in flight

counts = st.integers(1, 6)


@given(st.integers(1, 20), counts, counts, st.integers(1, 3))
def test_every_request_gets_its_tokens_and_every_step_runs_one_batch(
    num_requests: int, num_tokens: int, batch_size: int, in_flight: int
):
    requests = take_turns(num_requests, num_tokens, batch_size, in_flight)
    assert [len(request.made_at) for request in requests] == [num_tokens] * num_requests
    at_step = Counter(step for request in requests for step in request.made_at)
    assert sorted(at_step) == list(range(1, max(at_step) + 1))  # the device is never idle
    assert max(at_step.values()) <= batch_size
    assert all(gap <= in_flight for request in requests for gap in request.gaps)


@given(counts, counts, counts, st.integers(1, 3))
def test_full_batches_in_flight_take_as_many_steps_and_as_many_times_longer(
    rounds: int, num_tokens: int, batch_size: int, in_flight: int
):
    requests = take_turns(rounds * in_flight * batch_size, num_tokens, batch_size, in_flight)
    assert max(request.made_at[-1] for request in requests) == rounds * in_flight * num_tokens
    for request in requests:
        assert request.gaps == [in_flight] * (num_tokens - 1)
        assert request.latency == in_flight * (num_tokens - 1) + 1


def test_one_batch_at_a_time_by_hand():
    requests = take_turns(num_requests=3, num_tokens=2, batch_size=2, in_flight=1)
    assert [request.made_at for request in requests] == [[1, 2], [1, 2], [3, 4]]
    requests = take_turns(num_requests=3, num_tokens=2, batch_size=2, in_flight=2)
    assert [request.made_at for request in requests] == [[1, 3], [1, 3], [2, 4]]


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError, match="in_flight must be an integer of at least 1, got 0"):
        take_turns(1, 1, 1, 0)


# The report


def test_every_fact_is_equal_or_explained(report: PostReport):
    assert report.verdicts == {"equal": 5, "explained": 1}
    facts, about = facts_of(report), post_facts("003")
    assert facts["operations to bytes, from the post's two rates"].here == about["flop_to_byte"]
    factor = facts["device steps from a token to the next, two batches in flight"]
    assert factor.here == factor.post == about["latency_factor_two_in_flight"]


def test_two_batches_in_flight_in_the_report(report: PostReport):
    one, two = grid(report, "16 requests")
    assert one == [1, 12, 1, 6, 8] and two == [2, 12, 2, 11, 0]


def test_the_break_even_batches(report: PostReport):
    post, tensor_cores, here = grid(report, "Batch from which")
    assert post[1:] == ["82.3", 165, 83, 42]
    assert tensor_cores[1:] == ["163.9", 328, 164, 82]
    (time,) = report.sections[1].times
    assert here[1] == f"{time.here:.1f}" and time.post == pytest.approx(83e12 / 1008e9, abs=0.005)


def test_what_the_post_does_not_state_is_marked(report: PostReport):
    rows = [row for section in report.sections for row in (*section.facts, *section.times) if row.source]
    assert {row.what: row.source.kind for row in rows} == {
        "operations for each byte read": "computed",
        "device steps from a token to the next, two batches in flight": "computed",
    }
    executors = report.sections[-1].grids[-1]
    assert executors.columns[1] == "batches in flight (inferred)"


def test_a_wrong_figure_of_the_post_would_be_found(monkeypatch: pytest.MonkeyPatch):
    wrong = post_facts("003") | {"flop_to_byte": "83:1", "latency_factor_two_in_flight": 3}
    monkeypatch.setattr(post003, "post_facts", lambda post: wrong)
    report = post003.reproduce(QUICK)
    # Two batches that take turns explain a factor of two, whatever the post says; nothing explains the ratio.
    assert report.verdicts == {"equal": 3, "explained": 2, "different": 1}


def test_engines_are_those_that_are_built():
    built = []

    class Noting(VectorizedGather):
        def __init__(self, model: GPT2, **sizes: int) -> None:
            built.append(sizes)
            super().__init__(model, **sizes)

    setting = Setting(
        torch.device("cpu"), {"s04": Noting, "s06": BlockTableCache}, model="random:tiny-qwen2", quick=True
    )
    report = post003.reproduce(setting)
    configs = post003.engines(setting)
    sizes = ("num_blocks", "block_size", "max_num_seqs")
    assert built == [{name: getattr(config, name) for name in sizes} for config in configs]
    assert {config.model for config in configs} == {"random:tiny-qwen2"} == set(report.arguments["models"])


@pytest.mark.parametrize(
    ("device", "quick", "expected"),
    [
        ("cpu", False, [("tiny", "float32"), ("random:gpt2", "float32")]),
        ("cpu", True, [("tiny", "float32")]),
        ("cuda", False, [("random:gpt2", "float16"), ("random:qwen2.5-7b", "float16")]),
    ],
    ids=["cpu", "cpu, quick", "cuda"],
)
def test_models_by_device(monkeypatch: pytest.MonkeyPatch, device: str, quick: bool, expected: list[tuple[str, str]]):
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: None)
    setting = Setting(torch.device(device), STAGES, quick=quick)
    assert [(config.model, config.dtype) for config in host.engines(setting)] == expected
    assert host.left_out(setting) == []


def test_a_model_that_does_not_fit_is_left_out_with_its_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: 8 * 2**30)
    setting = Setting(torch.device("cuda"), STAGES)
    assert [config.model for config in host.engines(setting)] == ["random:gpt2"]
    (part,) = host.left_out(setting)
    assert part.what.endswith("random:qwen2.5-7b")
    assert int(part.needs.split()[0].replace(",", "")) > 15 * 10**9  # 7.6e9 weights of two bytes
    asked_for = Setting(torch.device("cuda"), STAGES, model="random:qwen2.5-7b")  # load_model then says what is missing
    assert len(host.engines(asked_for)) == 1 and host.left_out(asked_for) == []


def test_the_report_says_whose_cores_compute(report: PostReport):
    text = " ".join(report.sections[2].text)
    assert "the same cores, so nothing can be hidden" in text
    assert {part.what.split(" ")[0] for part in report.not_run} == {"asynchronous", "throughput", "the"}
    assert all(part.needs for part in report.not_run)
