"""with_row_parallel: stage 21 with a learner's layer on rank 0."""

from __future__ import annotations

from typing import Any

from ..exercises.attempt import does_nothing


def with_row_parallel(stage_class: type[Any], name: str, layer: type[Any]) -> type[Any]:
    """Make a subclass of a stage that uses this class, on rank 0, for the layers that are cut by inputs.

    A class whose forward does nothing yet, `...`, is left out. name: of the new stage, in tables and races.
    Raises ValueError for a stage without such layers.
    """
    if not hasattr(stage_class, "row_parallel"):
        raise ValueError(f"stage_class must have a class `row_parallel`, as stage 21 has, got {stage_class.name}")
    members = {"name": name} if does_nothing(layer.forward) else {"name": name, "row_parallel": layer}
    return type(stage_class.__name__, (stage_class,), members)
