"""Models and prompts that tests share."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from course.contract.small_models import model_of as model_on
from course.contract.small_models import prompts_of, small_llama, small_model
from roseinfer.models import Model
from roseinfer.reference import reference_generate
from roseinfer.sequence import Logprob, Sequence

__all__ = ["assert_logits_close", "assert_right", "model_of", "prompts_of", "small_llama", "small_model", "values_of"]


def model_of(name: str) -> Model:
    """The small model of that name, such as "gpt2" or "qwen3": one for all tests, which change nothing in it."""
    return model_on(name, "cpu")


def assert_logits_close(actual: Tensor, expected: Tensor) -> None:
    """Within 1e-4, and where logits are large within 1e-4 of the largest: fp32 rounding grows with them."""
    assert actual.shape == expected.shape
    error, allowed = (actual - expected).abs().max(), 1e-4 * max(1.0, float(expected.abs().max()))
    assert error < allowed, f"logits differ by {error:.1e}, allowed {allowed:.1e}"


def values_of(position: dict[int, Logprob]) -> dict[int, float]:
    """Log-probabilities without their ranks and texts, to be compared within rounding."""
    return {token: entry.logprob for token, entry in position.items()}


def assert_right(model: Model, seqs: abc.Sequence[Sequence], *oracles: Callable) -> None:
    """Each has the greedy tokens that the cache-free reference gives, or each of these oracles: up to its first stop
    token or to max_tokens; after an abort or an error, as many as it has."""
    prompts = tuple(tuple(seq.token_ids[: seq.num_prompt_tokens]) for seq in seqs)
    most = max(seq.params.max_tokens for seq in seqs)
    for oracle in oracles or (reference_generate,):
        wanted = [_ended(ids, seq) for ids, seq in zip(_continued(oracle, model, prompts, most), seqs, strict=True)]
        assert [seq.output_ids for seq in seqs] == wanted


@lru_cache(maxsize=512)
def _continued(oracle: Callable, model: Model, prompts: tuple[tuple[int, ...], ...], most: int) -> list[list[int]]:
    """Kept: many tests ask the same of a model that they share, and change nothing in it."""
    return oracle(model, [list(prompt) for prompt in prompts], most)


def _ended(token_ids: list[int], seq: Sequence) -> list[int]:
    if seq.finish_reason in ("abort", "error"):
        return token_ids[: len(seq.output_ids)]
    stop = next((i for i, token in enumerate(token_ids) if token in seq.params.stop_token_ids), len(token_ids))
    return token_ids[: min(stop + 1, seq.params.max_tokens)]
