"""A recorded step gives what the step gives, on new inputs in the old places; and what it cannot keep it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from roseinfer.graphs import capture
from roseinfer.graphs.operation import OperationMode, is_inside_operation, name_of, operation

CPU = torch.device("cpu")
WEIGHT, INPUT, OUT = torch.randn(4, 6), torch.zeros(8, 4), torch.zeros(8, 6)


@operation
def shifted(x: Tensor, out: Tensor) -> Tensor:
    """Below PyTorch, as a loop of Numba's is."""
    out.numpy()[: len(x)] = x.numpy() + 1
    return out


def views_and_lists() -> tuple[Tensor, Tensor]:
    left, right = (INPUT[:3] @ WEIGHT).view(3, 2, 3).split([1, 1], dim=1)
    return torch.cat([left, right], dim=2), left.flatten(1) * INPUT[2:5].transpose(0, 1).sum()


def in_place() -> Tensor:
    x = INPUT @ WEIGHT
    x.add_(1).mul_(2)
    OUT[:2].copy_(x[:2])
    return OUT + x


def largest() -> tuple[Tensor, Tensor]:
    top, at = (INPUT @ WEIGHT).max(dim=-1)
    return torch.where(top.isfinite(), at, -1), top


def with_operation() -> Tensor:
    return shifted(INPUT[:3] @ WEIGHT, out=OUT[:3]).flatten() * 2


def fills_outside() -> Tensor:
    OUT.zero_()
    OUT[1:3].fill_(7)
    return OUT + INPUT.sum()


@pytest.mark.parametrize("step", [views_and_lists, in_place, largest, with_operation, fills_outside])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_replay_is_the_step_on_what_the_inputs_hold_now(step: Callable[[], object], mode):
    with mode():
        graph = capture(step, CPU)
        for seed in range(3):
            INPUT.copy_(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)))
            OUT.fill_(seed)
            expected, left = step(), OUT.clone()
            OUT.fill_(seed)
            torch.testing.assert_close(graph.replay(), expected, rtol=0, atol=0)
            assert torch.equal(OUT, left)


def test_views_of_what_lies_outside_are_made_once():
    def step() -> Tensor:
        return INPUT[:3].view(3, 2, 2).transpose(1, 2)[1] + WEIGHT[0, :2]

    assert capture(step, CPU).operations == ["aten::add"]


def test_a_loop_below_pytorch_is_one_operation_and_is_seen_by_nobody_else():
    graph = capture(with_operation, CPU)
    assert graph.operations.count("shifted") == 1 and "aten::add" not in graph.operations
    assert torch.equal(shifted(torch.ones(1, 6), OUT)[0], torch.full((6,), 2.0))


def test_the_code_calls_tensors_by_their_names():
    code = capture(lambda: INPUT @ WEIGHT, CPU, names={"tokens": INPUT, "h.0.weight": WEIGHT}).code
    assert "mm.default(tokens, h_0_weight)" in code


def test_a_value_of_python_stays_what_it_was():
    """As in a CUDA graph: no error tells of it."""
    count = 1
    graph = capture(lambda: INPUT[:1] * 0 + torch.tensor([float(count)]) + count, CPU)
    count = 5
    assert graph.replay()[0, 0] == 2


@pytest.mark.parametrize(
    "step",
    [
        lambda: INPUT * float(INPUT[0, 0]),
        lambda: INPUT if INPUT[0, 0] > 0 else OUT,
        lambda: INPUT[INPUT > 0],
        lambda: INPUT.argmax().item(),
        lambda: INPUT * INPUT[0].tolist()[0],
        lambda: INPUT if (INPUT > 0).any() else OUT,
        lambda: INPUT if torch.allclose(INPUT, INPUT) else OUT,
        lambda: torch.argwhere(INPUT),
        lambda: torch.unique_consecutive(INPUT),
        lambda: INPUT.clone().index_put_((INPUT == 0,), OUT.flatten()[:32]),
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_in_which_the_host_waits_is_refused(step, mode):
    """Under inference_mode other operations are seen than without it."""
    INPUT.zero_()
    with mode(), pytest.raises(RuntimeError, match="must not wait for the device, .*: the (host waits|size|number)"):
        capture(step, CPU)


def test_one_value_under_a_mask_needs_no_wait():
    def step() -> Tensor:
        x = INPUT.clone()
        x[INPUT > 0] = 7
        return x

    INPUT.fill_(-1)
    graph = capture(step, CPU)
    INPUT[0] = 1
    assert graph.replay()[:2, 0].tolist() == [7, -1]


@pytest.mark.parametrize("unseen", [lambda x: x.numpy(), np.asarray, np.from_dlpack])
def test_what_is_done_below_pytorch_is_refused_unless_it_is_an_operation(unseen):
    """It would be missing in a replay, which would then give whatever lies in the memory."""

    def step() -> Tensor:
        out = torch.empty(8, 4)
        unseen(out)[:] = 3
        return out

    with pytest.raises(RuntimeError, match="through NumPy, unless in an operation"):
        capture(step, CPU)


def test_after_a_refusal_nothing_listens_any_more():
    with pytest.raises(RuntimeError, match="wait"):
        capture(lambda: INPUT.sum().item(), CPU)
    assert isinstance(INPUT.sum().item(), float)


def test_an_operation_that_fails_leaves_the_modes_as_they_were():
    class Heard(OperationMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def on_operation(self, func, args, kwargs):
            self.names.append(name_of(func))
            return func(*args, **kwargs)

    @operation
    def fails(x: Tensor) -> None:
        x.add_(1)
        raise KeyError("at once")

    with Heard() as outer, Heard() as inner:
        with pytest.raises(KeyError):
            fails(OUT)
        OUT.zero_()
    assert inner.names == ["fails", "aten::zero_"]
    assert outer.names == ["aten::add_", "aten::zero_"]  # the inner mode alone was told of the operation
    assert not is_inside_operation()
    shifted(torch.ones(1, 6), OUT)
    assert len(inner.names) == 2
