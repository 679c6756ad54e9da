from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from roseinfer.profiling.reachable import arrays_of, tensors_of


@dataclass
class Plain:
    kept: dict = field(default_factory=dict)


def ids(things: list) -> list[int]:
    return sorted(map(id, things))


@pytest.mark.parametrize(("made", "found"), [(torch.ones, tensors_of), (np.ones, arrays_of)])
def test_however_a_thing_is_kept_it_is_found_once(made, found):
    a, b, c, d, e = map(made, range(1, 6))
    layer = nn.Linear(2, 2)
    layer.beside, layer.plain = a, Plain({"deep": [(b, a)]})
    thing = [layer, {"twice": a}, partial(print, c), lambda x=d: x @ e]
    own = [layer.weight, layer.bias] if found is tensors_of else []
    assert ids(found(thing, layer)) == ids([a, b, c, d, e, *own])


def test_the_dict_of_an_object_leads_to_its_values():
    a = torch.ones(1)
    assert ids(tensors_of(vars(Plain({"a": a})))) == ids([a])


def test_what_is_left_out_leads_nowhere():
    a, b = torch.ones(1), torch.ones(2)
    assert ids(tensors_of([Plain({"a": a}), b], without=(Plain,))) == ids([b])


def test_a_ring_ends():
    ring: list = [torch.ones(1)]
    ring.append(ring)
    assert len(tensors_of(ring)) == 1
