"""The promise about the caller's model: a stage that packs or rounds weights does so in its own copy."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.generate import begin, decode_step
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..making import copy_of, stage_of
from ..small_models import prompts_for


def leaves_your_model(stage_class: type[Stage], device: str) -> None:
    """Check that a stage does not change the model it is made on, which other stages and the reference may share."""
    for name in ("gpt2", "llama"):
        model, as_it_was = copy_of(name, device), copy_of(name, device)
        stage = stage_of(stage_class, model, device, num_blocks=8)
        require_same_model(model, as_it_was, "when it is made")
        seqs = begin(stage, prompts_for(name, (3, 5)), SamplingParams(max_tokens=3, ignore_eos=True))
        require_same_model(model, as_it_was, "in a prefill")
        decode_step(stage, seqs)
        require_same_model(model, as_it_was, "in a decode step")


def require_same_model(model: Model, as_it_was: Model, when: str) -> None:
    """Require that a model has the same modules and the same numbers in them as before."""
    stage_writes = f"the stage changes its caller's model {when}"
    modules, were = (dict(m.named_modules()) for m in (model, as_it_was))
    for name in were | modules:
        kind, was = type(modules.get(name)), type(were.get(name))
        assert kind is was, f"{stage_writes}: {name} is a {kind.__name__} now, and was a {was.__name__}"
    tensors, were = model.state_dict(), as_it_was.state_dict()
    for name in were | tensors:
        same = name in tensors and name in were and _equal_tensors(tensors[name], were[name])
        assert same, f"{stage_writes}: {name} differs. Pack or round a copy of it"


def _equal_tensors(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.layout == other.layout and torch.equal(one, other)
