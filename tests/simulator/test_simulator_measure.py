"""Measured steps, and simulations held to real runs. What is exact of them: never a time."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from clocks import StepClock

from roseinfer.models import load_model
from roseinfer.simulator import EngineSetting, StepSample, fit, measure, step_samples, validate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_shapes")]


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture
def step_clock(monkeypatch):
    """Drives every engine that is built meanwhile."""
    clock, build = StepClock(), measure.real_engine

    def built(*arguments):
        engine = build(*arguments)
        clock.drive(engine)
        return engine

    monkeypatch.setattr(measure, "real_engine", built)
    monkeypatch.setattr("roseinfer.simulator.validation.real_engine", built)
    return clock


def test_each_round_measures_the_same_kinds_of_steps(model):
    rounds = []
    samples = step_samples(model, max_num_seqs=4, repeats=2, on_progress=rounds.append)
    num_shapes = len({run.name for run in rounds})
    assert [run.repeat for run in rounds] == [number for number in (-1, 0, 1) for _ in range(num_shapes)]
    assert {run.runs_total for run in rounds} == {3 * num_shapes} and rounds[-1].seconds_left > 0
    kinds = Counter(s.work for s in samples)
    assert all(n % 2 == 0 for n in kinds.values())
    assert all(s.host > 0 and s.device > 0 for s in samples)
    assert {w.num_seqs for w in kinds} == {1, 2, 3, 4}
    assert any(w.prompt_tokens and w.num_decodes for w in kinds), "prompts that join"
    assert any(w.prompt_context > w.prompt_tokens for w in kinds), "chunks"
    cost = fit("here", samples)
    assert min(*cost.host, *cost.device) >= 0 and len(cost.errors) == len(kinds)


def test_nothing_stays_behind_in_the_engines(model):
    steps = measure.StepMeasure(model, 2, 64, lambda: 0.0)
    steps.round(0, measure.Random(0))
    for engine, *_ in steps.runs:
        assert not engine.has_work and engine.blocks.num_free == engine.blocks.num_blocks
        engine.blocks.check()


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"max_num_seqs": 0}])
def test_wrong_counts(model, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be an integer of at least 1, got 0"):
        step_samples(model, **wrong)


def test_a_clock_that_is_known_is_predicted_exactly(model, step_clock):
    """Steps of a second each are a fixed cost of a second, and everything that follows from it is the same."""
    setting = EngineSetting(num_blocks=64, max_num_seqs=4, max_model_len=512)
    found = validate(
        model, setting, "here", num_requests=8, prompt_lens=(1, 40), output_lens=(1, 9), repeats=1, clock=step_clock
    )
    assert found.cost.device == pytest.approx((1, 0, 0, 0, 0, 0, 0, 0), abs=1e-9) and not any(found.cost.host)
    assert [row["arrivals"] for row in found.rows] == ["at once", "Poisson, 80% load"]
    for row in found.rows:
        assert row["errors"] == pytest.approx(dict.fromkeys(row["errors"], 0), abs=1e-9)
    assert "Throughput is within 15%" in found.text()
    assert json.loads(found.to_json())["rows"] == found.rows


def test_a_prediction_that_is_off_says_so(model, step_clock, monkeypatch):
    samples = step_samples(model, max_num_seqs=4, repeats=1, clock=step_clock)
    half = fit("here", [StepSample(s.work, s.host, s.device / 2) for s in samples])
    monkeypatch.setattr("roseinfer.simulator.validation.fit", lambda about, samples: half)
    setting = EngineSetting(num_blocks=64, max_num_seqs=4, max_model_len=512)
    found = validate(model, setting, "here", num_requests=4, output_lens=(1, 9), repeats=1, clock=step_clock)
    assert found.worst_error == pytest.approx(1) and "NOT within 15%" in found.text()
