"""Random checkpoints of every family answer as transformers does, or are refused."""

from __future__ import annotations

import pytest
from random_checkpoints import outcome, write_random

SEEDS = range(40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_checkpoint_answers_as_transformers_does_or_is_refused(tmp_path, seed):
    result = outcome(seed, tmp_path)  # raises for a token that differs
    assert result == "refused" or result.endswith(" equal")


@pytest.mark.slow
def test_the_seeds_have_every_family_and_settings_that_are_refused(tmp_path):
    changes = [write_random(seed, tmp_path / str(seed)) for seed in SEEDS]
    assert {each["model_type"] for each in changes} == {"gpt2", "llama", "mistral", "qwen2", "qwen3"}
    assert len({key for each in changes for key in each}) > 30
