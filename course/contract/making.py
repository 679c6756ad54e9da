"""Makes the stages that the promises check, each on a copy of the model and with every size given."""

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
    """Make a stage of that class, with every size given: no promise depends on a stage's defaults.

    model: a name in small_models.MAKERS, or a model that the caller shares between stages. For a name the stage gets a
    copy of the model, so that what it writes there reaches neither the reference nor another stage.
    """
    model = copy_of(model, device) if isinstance(model, str) else model
    return stage_class(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, **more)


def copy_of(name: str, device: str) -> Model:
    return deepcopy(model_of(name, device))
