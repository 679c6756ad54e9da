from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from roseinfer.profiling.reachable import arrays_of, tensors_of


@dataclass
class Plain:
    kept: dict = field(default_factory=dict)


def ids(tensors: list[Tensor]) -> list[int]:
    return sorted(map(id, tensors))


def test_however_a_tensor_is_kept_it_is_found_once():
    a, b, c, d, e = (torch.ones(n) for n in range(1, 6))
    layer = nn.Linear(2, 2)
    layer.beside, layer.plain = a, Plain({"deep": [(b, a)]})
    thing = [layer, {"twice": a}, partial(print, c), lambda x=d: x @ e]
    assert ids(tensors_of(thing, layer)) == ids([a, b, c, d, e, layer.weight, layer.bias])


def test_the_dict_of_an_object_leads_to_its_values():
    a = torch.ones(1)
    assert ids(tensors_of(vars(Plain({"a": a})))) == ids([a])


def test_numpy_arrays_are_found_once_too():
    a, b = np.ones(1), np.ones(2)
    layer = nn.Linear(2, 2)
    layer.beside, layer.plain = a, Plain({"deep": [(b, a)]})
    assert sorted(map(id, arrays_of(layer, lambda x=b: x @ a))) == sorted(map(id, (a, b)))


def test_what_is_left_out_leads_nowhere():
    a, b = torch.ones(1), torch.ones(2)
    assert ids(tensors_of([Plain({"a": a}), b], without=(Plain,))) == ids([b])


def test_a_ring_ends():
    ring: list = [torch.ones(1)]
    ring.append(ring)
    assert len(tensors_of(ring)) == 1
