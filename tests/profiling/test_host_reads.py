"""host_reads: every way in which Python gets at a tensor's numbers, and the bytes that takes."""

from __future__ import annotations

import pytest
import torch

from roseinfer.profiling import host_reads

x = torch.arange(6.0).view(2, 3)
mask = x > 1


@pytest.mark.parametrize(
    ("step", "call", "nbytes"),
    [
        (lambda: x.tolist(), "tolist", 24),
        (lambda: x[0].tolist(), "tolist", 12),
        (lambda: x[0, 0].item(), "item", 4),
        (lambda: int(x[0, 0].long()), "__int__", 8),
        (lambda: float(x[0, 0]), "__float__", 4),
        (lambda: bool(mask.any()), "__bool__", 1),
        (lambda: [1, 2, 3][torch.tensor(1)], "__index__", 8),
        (lambda: x.cpu(), "cpu", 24),
        (lambda: 3.0 in x, "__contains__", 1),
        (lambda: torch.equal(x, x), "equal", 1),
        (lambda: mask.nonzero(), "nonzero", 8),
        (lambda: torch.where(mask), "where", 8),
        (lambda: x[mask], "__getitem__", 8),
        (lambda: x[:, mask[0]], "__getitem__", 8),
        (lambda: x.clone().__setitem__(mask, 0.0), "__setitem__", 8),
        (lambda: x.masked_select(mask), "masked_select", 8),
    ],
)
def test_a_read_is_counted_with_its_bytes(step, call, nbytes):
    found = host_reads(step)
    assert (dict(found.by_call), found.reads, found.nbytes) == ({call: 1}, 1, nbytes)


@pytest.mark.parametrize(
    "step",
    [
        lambda: x.argmax(-1) + x.size(0) + x.numel(),
        lambda: torch.where(mask, x, 0.0),
        lambda: x[:, torch.tensor([0, 2])],
        lambda: x.masked_fill(mask, 0.0),
        lambda: torch.multinomial(x, 1),
        lambda: [row * 2 for row in x],
    ],
)
def test_what_reads_nothing_is_not_counted(step):
    assert host_reads(step).reads == 0


def test_reads_add_up_and_become_a_table():
    @torch.inference_mode()
    def step():
        for row in x:
            row.tolist()
        assert mask.any()

    found = host_reads(step)
    assert (found.reads, found.nbytes) == (3, 25)
    facts = found.facts()
    assert facts.title == "3 reads of 25 bytes in all"
    assert facts.df.to_dict("list") == {"call": ["__bool__", "tolist"], "reads": [1, 2]}


def test_errors_come_through_and_counting_ends():
    with pytest.raises(ZeroDivisionError):
        host_reads(lambda: 1 / 0)
    found = host_reads(lambda: None)
    x.tolist()
    assert found.reads == 0
