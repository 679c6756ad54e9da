"""Random checkpoints of every family answer as transformers does, or are refused."""

from __future__ import annotations

import pytest
from random_checkpoints import drawn, outcome
from tiers import in_every_run

SEEDS = {str(seed): (seed,) for seed in range(40)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", in_every_run(SEEDS, list(SEEDS)[::3]))
def test_a_random_checkpoint_answers_as_transformers_does_or_is_refused(tmp_path, seed):
    result = outcome(seed, tmp_path)  # raises for a token that differs
    assert result == "refused" or result.endswith(" equal")


def test_the_seeds_have_every_family_and_settings_that_are_refused():
    shapes, _, changes = zip(*(drawn(seed) for [seed] in SEEDS.values()), strict=True)
    assert {shape["model_type"] for shape in shapes} == {"gpt2", "llama", "mistral", "qwen2", "qwen3"}
    assert len({key for each in changes for key in each}) > 29
