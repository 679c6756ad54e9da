"""oneDNN's private operations are used only where they work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from roseinfer.kernels.onednn import packs


def refuse(*args):
    raise RuntimeError("bf16 path needs the cpu support avx512")


def wrong_product(x, weight, bias, *rest):
    return x @ weight.T


@pytest.mark.parametrize(
    "operations",
    [
        {},
        {"_reorder_linear_weight": refuse},
        {"_reorder_linear_weight": lambda weight, rows: weight, "_linear_pointwise": wrong_product},
    ],
    ids=["missing", "refused", "wrong"],
)
def test_operations_that_do_not_work_here_are_not_used(monkeypatch, operations):
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**operations))
    assert not packs.__wrapped__(torch.float32)
