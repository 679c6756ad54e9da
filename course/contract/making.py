"""Make the stages of the promises: on a model of its own, with every size given."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from roseinfer.models import Model
from roseinfer.stage import Stage

from .small_models import model_of


def stage_of(
    stage_class: type[Stage],
    model: str | Model,
    device: str,
    *,
    num_blocks: int,
    block_size: int = 64,
    max_num_seqs: int = 64,
    **more: Any,
) -> Stage:
    """A stage of that class. No promise rests on a stage's own defaults.

    model: a name in small_models.MAKERS, of which the stage gets a copy. What it writes into the copy reaches no
    reference and no other stage. Or a model that the caller shares between stages.
    """
    model = copy_of(model, device) if isinstance(model, str) else model
    return stage_class(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, **more)


def copy_of(name: str, device: str) -> Model:
    return deepcopy(model_of(name, device))
