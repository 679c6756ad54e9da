"""with_draft: a stage that drafts with a function of the learner's in the place of its own method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roseinfer.sequence import Sequence

from ..exercises.attempt import does_nothing


def with_draft(stage_class: type[Any], name: str, draft: Callable[[list[int], int], Any]) -> type[Any]:
    """A subclass of a stage with drafts, which calls draft(token_ids, num_tokens) for them. A function that does
    nothing yet, `...`, is left out. name: of the new stage, in tables and races.

    Raises ValueError for a stage without drafts.
    """
    if not hasattr(stage_class, "draft"):
        raise ValueError(f"stage_class must have a method `draft`, as stage 19 has, got {stage_class.name}")

    def own_draft(self: Any, seq: Sequence, num_tokens: int) -> list[int]:
        return [int(token) for token in draft(list(seq.token_ids), num_tokens)]  # its own list: it may change it

    members = {"name": name} if does_nothing(draft) else {"name": name, "draft": own_draft}
    return type(stage_class.__name__, (stage_class,), members)
