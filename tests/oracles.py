"""Models and prompts that tests share."""

from __future__ import annotations

from torch import Tensor

from roseinfer.contract.small_models import prompts_of, small_llama, small_model

__all__ = ["assert_logits_close", "prompts_of", "small_llama", "small_model"]


def assert_logits_close(actual: Tensor, expected: Tensor) -> None:
    """Within 1e-4, and where logits are large within 1e-4 of the largest: fp32 rounding grows with them."""
    assert actual.shape == expected.shape
    error, allowed = (actual - expected).abs().max(), 1e-4 * max(1.0, float(expected.abs().max()))
    assert error < allowed, f"logits differ by {error:.1e}, allowed {allowed:.1e}"
