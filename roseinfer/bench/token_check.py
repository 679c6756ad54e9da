"""The check that a contender's tokens are right: one that is fast and wrong must not get a number."""

from __future__ import annotations

import torch

from roseinfer.models import Model
from roseinfer.reference import reference_logits

NEAR_TIE = 1e-3


class TokensDiffer(AssertionError):
    """A contender's greedy tokens are not the reference's; the message names it, the sequence and the index."""


class Referee:
    """Compares every run's tokens: in fp32 with the reference, and raises; in half precision it only notes differences.

    In half precision greedy tokens of correct programs differ (sums are rounded in another order), so there the first
    run's tokens are the yardstick, and `verdicts` says which contender differs from it where.
    """

    def __init__(self, model: Model, prompts: list[list[int]]) -> None:
        self.asserts = model.dtype == torch.float32
        self.verdicts: dict[str, str] = {}
        self._model = model
        self._prompts = prompts
        self._expected: list[list[int]] | None = None

    def check(self, name: str, outputs: list[list[int]], near: float = 0.0) -> None:
        """Check `outputs`, the new tokens of each sequence. Raises TokensDiffer in fp32 when they are wrong.

        near: a sequence may part from the reference if each of its tokens has a logit that is at most so far below the
        best one after the same text. This is for programs that do not compute all in fp32 what they call fp32.
        """
        expected = self._expected
        if expected is None:
            expected = self._reference_of(outputs) if self.asserts else outputs
        parted = {
            i: next(n for n, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
            for i, (got, want) in enumerate(zip(outputs, expected, strict=True))
            if got != want
        }
        for i, index in parted.items() if self.asserts else ():
            if not near or self._largest_gap(i, outputs[i]) > near:
                raise TokensDiffer(self._accusation(name, i, index, outputs[i][index], expected[i]))
        if parted:
            first = next(iter(parted))
            self.verdicts[name] = f"differ (sequence {first}, token {parted[first]})"
        else:
            self._expected = expected  # kept only now: after a wrong token the reference would be another text's
            self.verdicts.setdefault(name, "equal")

    def _largest_gap(self, sequence: int, output: list[int]) -> float:
        """Find the largest gap by which a token's logit is below the best one, given the tokens before it."""
        prompt = self._prompts[sequence]
        logits = reference_logits(self._model, prompt + output[:-1])[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(output, device=logits.device).unsqueeze(1)).squeeze(1)
        return float((logits.amax(dim=1) - chosen).max())

    def _reference_of(self, outputs: list[list[int]]) -> list[list[int]]:
        """Compute what a model without a cache chooses at every position, given the tokens before it.

        One forward a sequence is enough: outputs equal their own greedy choices at every position exactly when they
        equal reference_generate's, and the first position that differs is the same one.
        """
        expected = []
        for prompt, output in zip(self._prompts, outputs, strict=True):
            logits = reference_logits(self._model, prompt + output[:-1])
            expected.append(logits[len(prompt) - 1 :].argmax(dim=-1).tolist())
        return expected

    def _accusation(self, name: str, sequence: int, index: int, got: int, want: list[int]) -> str:
        text = f"{name}: tokens differ from the reference at index {index} of sequence {sequence}: "
        text += f"got {got}, expected {want[index]}"
        last = reference_logits(self._model, self._prompts[sequence] + want[:index])[-1]
        gap = float(last[want[index]] - last[got])
        # Two correct programs may part here: worth knowing before hunting a bug that is not there.
        return text + (f" (a near tie: their logits differ by {gap:.1e})" if abs(gap) < NEAR_TIE else "")
