"""Lesson 11: wrong steps are told what is wrong, and right ones pass."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from wrong_answers import changed, right_answers, wrong_answers

from course.contract.small_models import small_model
from course.teach.exercises.solutions import solution
from roseinfer.engine.sampler import Sampler
from roseinfer.sampling import NO_TOKEN, exponential_race, sample
from stages import FusedStep, OneTable

pytestmark = pytest.mark.slow


step_with = partial(
    solution, "11.3", torch=torch, partial=partial, FusedStep=FusedStep, exponential_race=exponential_race
)
Right = step_with()
NOISE, FILTERED, FINITE = "self.noise(probs, drawn)", "if is_filtered(p)]", "largest.isfinite()"
DRAWN = "            tokens[rows] = "
A_MASK = "            mask = torch.zeros(len(tokens), dtype=torch.bool)\n            mask[rows] = True\n"
NEARLY_COLD = {
    " if seq.params.temperature > 0]": "]",
    "[finite_temperature(p) for": "[max(finite_temperature(p), 1e-6) for",
}


class SamplesOutside(OneTable):
    """Stage 10's way."""

    def next_tokens(self, seqs):
        return sample(self.decode(seqs), seqs)


@pytest.fixture(scope="module")
def model():
    return small_model()


test_a_wrong_step_is_refused = wrong_answers(
    "11.3",
    {
        "stage 11 again": (changed(FusedStep), "right tokens, but 9 rows of noise in a step, the budget is 2"),
        "all drawn rows sorted": (
            step_with({FILTERED: "]"}),
            "but 1 rows sorted in a step, the budget is 0",
        ),
        "the first row not filtered": (step_with({FILTERED: f"{FILTERED[:-1]} and row > 0]"}), "you return ["),
        "largest not subtracted": (step_with({" - largest[rows, None]": ""}), "coldest: you return ["),
        "no seeds": (step_with({NOISE: "torch.empty_like(probs).exponential_()"}), "you return ["),
        "greedy rows raced, nearly cold": (step_with(NEARLY_COLD), "8 rows of noise in a step, the budget is 0"),
        "a mask": (
            step_with({DRAWN: f"{A_MASK}            tokens[mask] = "}),
            "2 reads of the host (__setitem__, tolist) in a step, the budget is 1",
        ),
        "every token on its own": (
            step_with(
                {"return torch.where(": "return torch.tensor([*map(int, torch.where(", "tokens, -1)": "tokens, -1))])"}
            ),
            "9 reads of the host (__int__, tolist) in a step",
        ),
        "sampled outside": (SamplesOutside, "2 reads of the host (tolist) in a step"),
        "NaN in drawn rows alone": (
            step_with({FINITE: f"{FINITE} | torch.tensor([seq.params.temperature == 0 for seq in seqs])"}),
            "in the logits of row 0: you return [",
        ),
        "masks refused": (step_with({FINITE: "logits.isfinite().all(-1)"}), "raised ValueError"),
    },
    model="model",
)


class WithTheEnginesSampler(FusedStep):
    def choose(self, logits, seqs):
        sampler = Sampler(self.max_num_seqs, self.config.vocab_size, self.model.device)
        largest, tokens = logits.max(dim=-1)
        return sampler(logits, torch.where(largest.isfinite(), tokens, NO_TOKEN), seqs)


class InTwoMethods(OneTable):
    """On stage 10, without a `choose`: the seam is next_tokens."""

    @torch.inference_mode()
    def next_tokens(self, seqs):
        logits = self.decode(seqs)
        tokens = Right.choose(self, logits, seqs).tolist()
        if -1 in tokens:
            for seq in seqs:
                seq.num_cached_tokens -= 1
            raise ValueError("logits must be finite to sample from them, got NaN or infinity")
        return tokens

    distribution, noise = Right.distribution, FusedStep.noise


test_an_unusual_step_passes = right_answers(
    "11.3",
    {"the engine's sampler": WithTheEnginesSampler, "on stage 10": InTwoMethods},
    model="model",
)
