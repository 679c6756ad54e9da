"""Post 003 reproduced on the engine: signs of real timestamps, its sweep, the host's share, and its executors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from made_up import facts_of, grid, require_whole
from small_posts import FEWER_REQUESTS, MACHINE, setting

from course.posts.data import post_facts, post_table
from course.posts.post003 import budgets, executors, host, times
from course.posts.report import PostReport
from roseinfer.models import GPT2
from roseinfer.planning import sizes as engine_sizes
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow

POST = "003"

QUICK = setting("003")
ABOUT = post_facts("003") | FEWER_REQUESTS


# Timestamps


def test_the_report_is_whole(report):
    explained = {"waiting_time", "device steps from a token to the next, one step behind"}
    require_whole(report, explained)


def test_waiting_time_is_negative_as_printed(report: PostReport):
    facts = facts_of(report)
    assert {name: facts[name].verdict for name in post_table("003", "times")["name"]} == {
        "waiting_time": "explained",
        "scheduling2inference": "equal",
        "inference_time": "equal",
        "latency": "equal",
    }
    assert facts["waiting_time"].here == "first_scheduled_ts - arrival_ts"
    requests, tokens = times.PLACES + times.LATECOMERS, times.TOKENS
    assert grid(report, "Signs") == [
        ["waiting_time", requests, requests, 0],
        ["scheduling2inference", requests * tokens, 0, requests * tokens],
        ["inference_time", requests * tokens, 0, requests * tokens],
        ["latency", requests * tokens, 0, requests * tokens],
    ]


def test_the_definitions_are_the_engine_s(report: PostReport):
    formulas = {row[0]: row[2] for row in grid(report, "Definitions")}
    assert formulas == {
        "waiting_time": "waiting_time = first_scheduled - arrival",
        "scheduling2inference": "scheduling_time = inference_begin - scheduled",
        "inference_time": "inference_time = inference_end - inference_begin",
        "latency": "latency = finish - scheduled",
        "TTFT": "ttft = finish[0] - arrival",
        "TPOT": "tpot = (finish[-1] - finish[0]) / (tokens - 1)",
    }


def test_the_latecomers_really_wait(report: PostReport):
    assert f"{times.LATECOMERS} of them wait until another has finished" in report.sections[0].markdown
    requests = report.sections[0].samples["requests"]
    done = sorted(tokens[-1]["finish_ts"] for tokens in requests)
    started = sorted(tokens[0]["first_scheduled_ts"] for tokens in requests)
    assert started[times.PLACES - 1] < done[0] < started[times.PLACES]
    assert len({tokens[0]["arrival_ts"] for tokens in requests}) == 1


def test_an_order_that_fits_neither_way_is_said():
    taken = [{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}]
    assert times.never_negative("a", "b", taken) == "neither"
    assert times.never_negative("a", "b", taken[:1]) == "b - a"
    assert times.never_negative("a", "b", taken[1:]) == "a - b"


# The sweep over budgets


def test_the_engine_takes_the_steps_that_are_simulated(report: PostReport):
    rows = grid(report, f"{budgets.QUICK_REQUESTS} requests of 256 and 16")
    assert [row[0] for row in rows] == ABOUT["budgets"]
    assert all(most == budget and here == simulated for budget, most, here, simulated in rows)
    # All prompt tokens, and of the outputs all but the last one, are computed; the last steps only decode.
    for budget, _, steps, _ in rows:
        assert steps >= -(-budgets.QUICK_REQUESTS * (256 + 15) // budget)


@pytest.mark.parametrize("name", ["7B", "1.5B"])
def test_the_simulated_sweep_is_the_posts(report: PostReport, name: str):
    rows = grid(report, f"Simulated: 1,000 requests, the shape of Qwen2.5-{name}")
    assert [row[0] for row in rows] == ABOUT["budgets"]
    for budget, steps, speed, latency, inference, *_ in rows:
        assert steps >= ABOUT["num_requests"] * (256 + 15) / budget
        assert speed == pytest.approx(1e3 * ABOUT["num_requests"] / (steps * latency), rel=0.01)
        assert latency - inference == pytest.approx(0.3, abs=0.011)  # the post's host work, both rounded
    speeds, latencies = ([row[i] for row in rows] for i in (2, 3))
    assert speeds == sorted(speeds, reverse=True) and latencies == sorted(latencies, reverse=True)


def test_a_small_step_is_a_reading_of_all_weights():
    """The floor of the post's 7B in fp16: what it has for fp8, 14 ms, is no coincidence of the simulation."""
    cost = budgets.step_cost("7B")
    run = budgets.simulated_run(ABOUT, 32, cost)
    read = 1e3 * cost.terms.weight_bytes / cost.read_bytes_per_s
    assert read < run["ms"] - run["host_ms"] < 1.02 * read


def test_a_step_that_depends_on_more_would_be_seen():
    class OnSequences:
        about = "twice as long with many sequences"

        def seconds(self, work: Any) -> tuple[float, float]:
            return 0.0, 1.0 + (work.num_seqs > 10)

    assert budgets.simulated_run(ABOUT, 256, OnSequences())["spread"] == 1.0


def test_a_model_with_few_positions_gets_shorter_prompts():
    setting = replace(QUICK, model="random:tiny-qwen2")  # 256 positions
    assert budgets.lengths(ABOUT, setting.model) == (240, 16)
    assert budgets.engine(setting).max_num_seqs == 7  # so that the largest budget is full once


# Host work


def test_the_bound_of_the_posts_steps(report: PostReport):
    rows = {row[0]: row[1:] for row in grid(report, "The most that hiding")}
    for row in post_table("003", "steps").itertuples():
        share = row.host_ms / row.step_ms
        assert rows[f"computed from the post: {row.model} {row.dtype}"] == [f"{share:.1%}", f"×{1 / (1 - share):.3f}"]
    assert "here: tiny" in rows


def test_host_work_is_what_comes_before_and_after_the_model(tiny: GPT2):
    config = PlannedEngine(model="tiny", num_blocks=2, max_num_seqs=2)
    steps = host.engine_steps(tiny, config, 6)
    assert len(steps) == 4  # without the prefill and the last one
    for step in steps:
        assert step["planning"] == pytest.approx(step["schedule"] + step["prepare"] + step["commit"])
        assert 0 < step["planning"] < step["step"] - step["forward"]


def test_a_gain_that_is_not_small_would_be_said(monkeypatch: pytest.MonkeyPatch):
    slow = post_table("003", "steps").assign(host_ms=[7.0, 0.1])
    monkeypatch.setattr(host, "post_table", lambda post, table: slow)
    monkeypatch.setattr(host, "engines", lambda setting: [])
    facts = host.section(QUICK, MACHINE)["facts"]
    assert [(fact.here, fact.verdict) for fact in facts] == [("up to 100.0%", "different"), ("7B", "different")]


# Executors


@pytest.fixture(scope="module")
def config() -> PlannedEngine:
    return executors.engine(QUICK)


def whole(max_tokens: int = 5) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=max_tokens, ignore_eos=True)] * executors.REQUESTS


@pytest.mark.parametrize("executor", [executors.IN_TURN, executors.ONE_BEHIND, executors.TWO_IN_FLIGHT])
def test_every_executor_gives_the_reference_s_tokens(tiny: GPT2, config: PlannedEngine, executor: str):
    run = executors.run(config, tiny, executor, whole())
    prompts = [seq.token_ids[: seq.num_prompt_tokens] for seq in run.seqs]
    assert [seq.output_ids for seq in run.seqs] == reference_generate(tiny, prompts, max_tokens=5)
    assert len(run.finishes) == len(run.device.done) == 2 * 5 and run.surplus == 0
    in_flight, behind = executor == executors.TWO_IN_FLIGHT, executor != executors.IN_TURN
    assert set(run.gaps) == {1 + in_flight} and max(run.held) == 1 + behind


def test_the_device_works_in_order_and_is_told_the_tokens_of_each_step(tiny: GPT2, config: PlannedEngine):
    asked: list[int] = []

    def clock(num_tokens: int) -> float:
        asked.append(num_tokens)
        return 0.0

    run = executors.run(config, tiny, executors.TWO_IN_FLIGHT, whole(2), clock)
    done = run.device.done
    assert all(before.ended <= after.began for before, after in pairwise(done))
    assert asked == 2 * [8 * executors.PROMPT_LEN] + 2 * [8] and 0 < run.busy <= 1


def test_who_stops_with_a_token_has_one_computed_for_nobody(tiny: GPT2, config: PlannedEngine):
    whole_run = executors.run(config, tiny, executors.IN_TURN, whole(executors.TOKENS))
    run = executors.stopped(config, tiny, whole_run)
    assert run.surplus == executors.REQUESTS
    for seq, before in zip(run.seqs, whole_run.seqs, strict=True):
        stop = before.output_ids[executors.TOKENS // 2]
        assert seq.output_ids == before.output_ids[: before.output_ids.index(stop) + 1]


def test_executors_in_the_report(report: PostReport):
    rows = {row[0]: row[1:] for row in grid(report, "16 requests of up to")}
    steps = 2 * executors.TOKENS
    assert rows["in turn"] == [steps, 1, 1, 0] and rows["one step behind"] == [steps, 2, 1, 0]
    assert rows["two batches in flight"] == [steps, 2, 2, 0]
    assert rows["one step behind, stopped by a token"][1:] == [2, 1, 16]


# The report


def test_the_break_even_batches(report: PostReport):
    post, tensor_cores, here = grid(report, "Batch from which")
    assert post[1:] == ["82.3", 165, 83, 42]
    assert tensor_cores[1:] == ["163.9", 328, 164, 82]
    assert here[1:] == ["10.0", 20, 10, 5]
    assert grid(report, "Reading all weights") == [
        ["7B fp8", 7.07, 7.01, 14, "50%"],
        ["1.5B bf16", 3.09, 3.06, 6, "51%"],
    ]
    (time,) = report.sections[1].times
    assert (time.here, time.post) == (10, pytest.approx(83e12 / 1008e9, abs=0.005))


def test_every_figure_has_a_row(report: PostReport):
    rows = grid(report, "Figures, their axes")
    assert [row[0] for row in rows] == post_table("003", "figures")["figure"].tolist()
    assert all(row[-1] for row in rows)


def test_where_the_executors_batches_in_flight_are_from(report: PostReport):
    (executors_table,) = [g for s in report.sections for g in s.grids if g.title == "The post's executors"]
    assert executors_table.columns[1] == "batches in flight (inferred)"


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
    on_device = setting("003", device, quick=quick)
    assert [(config.model, config.dtype) for config in host.engines(on_device)] == expected
    assert host.too_large(on_device) == []


def test_a_model_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: 8 * 2**30)
    on_gpu = setting("003", "cuda", quick=False)
    assert [config.model for config in host.engines(on_gpu)] == ["random:gpt2"]
    (config,) = host.too_large(on_gpu)
    assert config.model == "random:qwen2.5-7b" and config.sizes().total_bytes > 15 * 10**9  # 7.6e9 weights of two bytes
    asked_for = replace(on_gpu, model="random:qwen2.5-7b")  # load_model then says what is missing
    assert len(host.engines(asked_for)) == 1 and host.too_large(asked_for) == []
