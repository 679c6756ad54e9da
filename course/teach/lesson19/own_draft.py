"""with_draft: a stage that drafts with a function of the learner's in the place of its own method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import Any

from roseinfer.sequence import Sequence

from ..exercises.attempt import does_nothing


def with_draft(
    stage_class: type[Any], name: str, draft: Callable[[list[int], int], Any], num_tokens: int | None = None
) -> type[Any]:
    """Make a subclass of a stage with drafts that calls draft(token_ids, num_tokens) for them.

    A function that does nothing yet, `...`, is left out. name: of the new stage, in tables and races. num_tokens: of a
    draft at most, 0 for no drafts, None for the stage's own number. Raises ValueError for a stage without drafts.
    """
    if not hasattr(stage_class, "draft"):
        raise ValueError(f"stage_class must have a method `draft`, as stage 19 has, got {stage_class.name}")

    def own_draft(self: Any, seq: Sequence, num_tokens: int) -> list[int]:
        return [int(token) for token in draft(list(seq.token_ids), num_tokens)]  # its own list: it may change it

    members: dict[str, Any] = {"name": name} if does_nothing(draft) else {"name": name, "draft": own_draft}
    if num_tokens:
        members["__init__"] = partialmethod(stage_class.__init__, num_tokens=num_tokens)
    elif num_tokens == 0:
        members["draft"] = lambda self, seq, num_tokens: []
    return type(stage_class.__name__, (stage_class,), members)
