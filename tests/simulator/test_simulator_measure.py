"""Measured steps, and real runs of the engine. What is exact of them: never a time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from roseinfer.simulator import fit, measure, step_samples

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    """Measure few shapes of steps, and fast ones."""
    monkeypatch.setattr(measure, "PROMPTS", ((1, 16), (4, 24)))
    monkeypatch.setattr(measure, "CUT", ((2, 120),))
    monkeypatch.setattr(measure, "CACHED", ((4, 90),))


def test_each_round_measures_the_same_kinds_of_steps(small):
    rounds = []
    samples = step_samples(small, max_num_seqs=4, repeats=2, on_progress=rounds.append)
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


def test_nothing_stays_behind_in_the_engines(small):
    shapes = measure.shapes_of(small, 2, 64)
    for engine, *sizes in shapes:
        assert list(measure.steps_of(engine, *sizes, Random(0)))
        assert not engine.has_work and engine.blocks.num_free == engine.blocks.num_blocks
        engine.blocks.check()


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"max_num_seqs": 0}])
def test_wrong_counts(small, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be an integer of at least 1, got 0"):
        step_samples(small, **wrong)
