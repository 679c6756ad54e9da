"""Obstacles to the capture of a step are found, one at a time; and a step that is fine is not refused."""

from __future__ import annotations

import pytest
import torch

from roseinfer.profiling.replay import record_step, replay_differences

WEIGHT, INPUT, OUT = torch.randn(4, 4), torch.randn(8, 4), torch.empty(8, 4)
ELSEWHERE = torch.randn(4)
KEPT = (WEIGHT, INPUT, OUT)


def fine(rows: int = 3) -> None:
    x = INPUT[:rows] @ WEIGHT
    mask = torch.arange(rows)[:, None] > 1
    OUT[:rows].copy_(torch.where(mask, x, torch.zeros_like(x)))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda: int(INPUT[0].argmax()), "the host waits for a value"),
        (lambda: INPUT if INPUT[0, 0] > 0 else OUT, "the host waits for a value"),
        (lambda: INPUT[INPUT > 0], "depends on values"),
        (lambda: torch.equal(INPUT, OUT), "the host waits"),
        (lambda: INPUT.argmax(-1).tolist(), "tolist: the host waits for values"),
        (lambda: OUT.numpy().fill(1), "through NumPy, unless in an operation"),
        (lambda: INPUT * torch.tensor([1.0, 2.0, 3.0, 4.0]), "made of Python's values (4,)"),
        (lambda: INPUT * ELSEWHERE, "reads a tensor [4] that is no weight, pool or input buffer"),
    ],
)
def test_what_forbids_a_capture_is_named(step, said):
    assert any(said in violation for violation in record_step(step, KEPT).violations)


def test_a_step_that_is_fine_could_replay_itself():
    first, second = record_step(fine, KEPT), record_step(fine, KEPT)
    assert first.ops and first.violations == second.violations == replay_differences(first, second) == []


def test_other_shapes_addresses_numbers_and_operations_are_differences():
    first = record_step(fine, KEPT)
    assert "operation" in replay_differences(first, record_step(lambda: fine(4), KEPT))[0]
    views = [record_step(lambda at=at: INPUT[at : at + 2].add_(1), KEPT) for at in (0, 2)]
    assert replay_differences(*views)
    scaled = [record_step(lambda by=by: INPUT[:2].mul_(by), KEPT) for by in (1.0, 2.0)]
    assert "mul_" in replay_differences(*scaled)[0]
    assert replay_differences(first, record_step(lambda: (fine(), fine()), KEPT)) == [
        f"{len(first.ops)} operations, then {2 * len(first.ops)}"
    ]
