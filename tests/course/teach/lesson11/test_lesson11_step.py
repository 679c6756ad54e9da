"""Lesson 11: wrong steps are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
from wrong_answers import right_answers, wrong_answers

from course.contract.small_models import small_model
from course.teach.lesson11.choice_checks import MIXES
from roseinfer.engine.sampler import Sampler
from roseinfer.sampling import (
    NO_TOKEN,
    distribution,
    exponential_race,
    finite_temperature,
    generator_of,
    is_filtered,
    sample,
)
from stages import FusedStep, OneTable

pytestmark = pytest.mark.slow


class Chooser(FusedStep):
    """A right one; subclasses go wrong in one of its methods."""

    def choose(self, logits, seqs):
        largest, tokens = logits.max(dim=-1)
        if rows := self.drawn_rows(seqs):
            drawn = [seqs[row] for row in rows]
            params = [seq.params for seq in drawn]
            probs = self.distribution((logits[rows] - largest[rows, None]).float(), params)
            tokens = self.put_back(tokens, rows, exponential_race(probs, self.noise(probs, drawn)))
        return self.checked(largest, tokens)

    def drawn_rows(self, seqs):
        return [row for row, seq in enumerate(seqs) if seq.params.temperature > 0]

    def filtered_rows(self, params):
        return [row for row, p in enumerate(params) if is_filtered(p)]

    def temperatures(self, params):
        return [finite_temperature(p) for p in params]

    def distribution(self, logits, params):
        rows = self.filtered_rows(params)
        return distribution(
            logits,
            torch.tensor(self.temperatures(params)),
            torch.tensor(rows) if rows else None,
            torch.tensor([params[row].top_k for row in rows]),
            torch.tensor([params[row].top_p for row in rows]),
        )

    def put_back(self, tokens, rows, drawn):
        return tokens.index_copy(0, torch.tensor(rows), drawn)

    def checked(self, largest, tokens):
        return torch.where(largest.isfinite(), tokens, -1)


def choosing(base=Chooser, **methods):
    return type("MyFusedStep", (base,), methods)


def filtering(change):
    """change(rows that ask for a filter, number of drawn rows) -> those that get one."""
    return choosing(filtered_rows=lambda self, params: change(Chooser.filtered_rows(self, params), len(params)))


def drawn_at_1e_6(self, params):
    return [max(t, 1e-6) for t in Chooser.temperatures(self, params)]


def noise_for_all(self, probs, seqs):
    torch.empty(8, probs.size(-1)).exponential_()
    return FusedStep.noise(self, probs, seqs)


class LargestNotSubtracted(Chooser):
    def choose(self, logits, seqs):
        largest, tokens = logits.max(dim=-1)
        if rows := self.drawn_rows(seqs):
            drawn = [seqs[row] for row in rows]
            probs = self.distribution(logits[rows].float(), [seq.params for seq in drawn])
            tokens = self.put_back(tokens, rows, exponential_race(probs, self.noise(probs, drawn)))
        return self.checked(largest, tokens)


class RefusesCold(Chooser):
    def next_tokens(self, seqs):
        if any(0 < seq.params.temperature < 1e-35 for seq in seqs):
            raise ValueError("too cold")
        return super().next_tokens(seqs)


class InTheFirstRows(Chooser):
    def put_back(self, tokens, rows, drawn):
        tokens[: len(rows)] = drawn
        return tokens


class ReadsAMask(Chooser):
    def put_back(self, tokens, rows, drawn):
        is_drawn = torch.zeros(len(tokens), dtype=torch.bool)
        is_drawn[rows] = True
        tokens[is_drawn] = drawn
        return tokens


class ReadsEach(Chooser):
    def choose(self, logits, seqs):
        return torch.tensor([int(token) for token in super().choose(logits, seqs)])


class LooksAtDrawnRows(Chooser):
    """NaN in a greedy row stays unseen."""

    def choose(self, logits, seqs):
        _, tokens = logits.max(dim=-1)
        if rows := self.drawn_rows(seqs):
            tokens[rows] = super().choose(logits, seqs)[rows]
        return tokens


class RefusesMasks(Chooser):
    def choose(self, logits, seqs):
        return torch.where(logits.isfinite().all(-1), super().choose(logits, seqs), -1)


class SamplesOutside(OneTable):
    """Stage 10's way."""

    def next_tokens(self, seqs):
        return sample(self.decode(seqs), seqs)


class WithTheEnginesSampler(FusedStep):
    def choose(self, logits, seqs):
        sampler = Sampler(self.max_num_seqs, self.config.vocab_size, self.model.device)
        largest, tokens = logits.max(dim=-1)
        return sampler(logits, torch.where(largest.isfinite(), tokens, NO_TOKEN), seqs)


class RowByRow(Chooser):
    """Each drawn row on its own, from a batch of one."""

    def choose(self, logits, seqs):
        largest, tokens = logits.max(dim=-1)
        for row in self.drawn_rows(seqs):
            probs = self.distribution((logits[row] - largest[row])[None].float(), [seqs[row].params])
            tokens[row] = exponential_race(probs, self.noise(probs, [seqs[row]]))[0]
        return self.checked(largest, tokens)


class ByMultinomial(Chooser):
    """torch.multinomial returns a tensor: code that does not look into it does not read."""

    def choose(self, logits, seqs):
        largest, tokens = logits.max(dim=-1)
        ok = largest.isfinite()
        for row in self.drawn_rows(seqs):
            probs = self.distribution((logits[row] - largest[row])[None].float(), [seqs[row].params])
            probs = torch.where(ok[row], probs, 1.0)
            tokens[row] = torch.multinomial(probs[0], 1, generator=generator_of(seqs[row], probs.device))[0]
        return self.checked(largest, tokens)


class InTwoMethods(OneTable):
    """On stage 10, without a `choose`: the seam is next_tokens."""

    @torch.inference_mode()
    def next_tokens(self, seqs):
        logits = self.decode(seqs)
        tokens = Chooser.choose(self, logits, seqs).tolist()
        if -1 in tokens:
            for seq in seqs:
                seq.num_cached_tokens -= 1
            raise ValueError("logits must be finite to sample from them, got NaN or infinity")
        return tokens

    drawn_rows, filtered_rows, temperatures = Chooser.drawn_rows, Chooser.filtered_rows, Chooser.temperatures
    distribution, put_back, checked, noise = Chooser.distribution, Chooser.put_back, Chooser.checked, FusedStep.noise


@pytest.fixture(scope="module")
def model():
    return small_model()


test_a_wrong_step_is_refused = wrong_answers(
    "11.3",
    {
        "stage 11 again": (
            choosing(FusedStep, choose=lambda self, *given: FusedStep.choose(self, *given)),
            "one drawn row of 8: right tokens, but noise for 9 rows, and 1 drawn",
        ),
        "all drawn rows sorted": (
            filtering(lambda rows, n: list(range(n)) if rows else []),
            "right tokens, but 3 rows sorted, and 1 asked for it",
        ),
        "never filtered": (filtering(lambda rows, n: []), "and `sample` chooses"),
        "the first row not filtered": (
            filtering(lambda rows, n: [row for row in rows if row > 0]),
            "the first row alone with top-p: next_tokens gives [",
        ),
        "the last row not filtered": (
            filtering(lambda rows, n: [row for row in rows if row < n - 1]),
            "the last row alone with top-p: next_tokens gives [",
        ),
        "largest not subtracted": (LargestNotSubtracted, "rows with temperature 1e-40: next_tokens gives ["),
        "the coldest refused": (RefusesCold, "1e-40: next_tokens raises a ValueError, and `sample` gives ["),
        "no seeds": (
            choosing(noise=lambda self, probs, seqs: torch.empty_like(probs).exponential_()),
            "greedy and drawn rows, token 0 of each: row 1, prompt of 9",
        ),
        "no temperature": (choosing(temperatures=lambda self, params: [1.0 for _ in params]), "temperature=5.0"),
        "greedy rows raced, nearly cold": (
            choosing(drawn_rows=lambda self, seqs: list(range(len(seqs))), temperatures=drawn_at_1e_6),
            "8 greedy rows: right tokens, but noise for 8 rows, and 0 drawn",
        ),
        "noise for all": (choosing(noise=noise_for_all), "noise for 10 rows, and 1 drawn"),
        "put into the first rows": (InTheFirstRows, "row 0, prompt of 3"),
        "a mask": (ReadsAMask, "the host reads 2 times in a step (__setitem__, tolist), the budget is 1"),
        "every token on its own": (ReadsEach, "the host reads 9 times in a step (__int__, tolist)"),
        "sampled outside": (SamplesOutside, "the host reads 2 times in a step (tolist), the budget is 1"),
        "NaN in drawn rows alone": (LooksAtDrawnRows, "NaN in the logits of a greedy row, row 0, and next_tokens"),
        "infinity taken": (
            choosing(checked=lambda self, largest, tokens: torch.where(largest.isnan(), -1, tokens)),
            "infinity in the logits of a greedy row, row 0, and next_tokens gives",
        ),
        "masks refused": (RefusesMasks, "are -inf, a mask, and next_tokens raises a ValueError; expected token 7"),
        "an error": (choosing(drawn_rows=lambda self, seqs: seqs.index(None)), "ValueError: None is not in list"),
        "no stage": (lambda logits: logits, "expected a subclass of a stage"),
    },
    model="model",
)


test_an_unusual_step_passes = right_answers(
    "11.3",
    {
        "the engine's sampler": WithTheEnginesSampler,
        "row by row": RowByRow,
        "multinomial": ByMultinomial,
        "on stage 10": InTwoMethods,
    },
    model="model",
)


def test_the_mixes_have_rows_of_each_kind():
    params = [p for mix in MIXES.values() for p in mix]
    assert {(p.temperature > 0, p.top_k > 0) for p in params} == {(False, False), (True, False), (True, True)}
