"""calls_through: the calls of a stage's four methods, with their tensors. Spans give only names and times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from roseinfer.models import Attend
    from roseinfer.sequence import Sequence

METHODS = ("write_prompt", "build", "step", "append")
# Does the work of a call and returns its result. Given: the method's name, its work, its arguments.
Through = Callable[[str, Callable[[], Any], tuple[Any, ...]], Any]


def calls_through(stage: Any, through: Through) -> AbstractContextManager[Any]:
    """Send every call of this one object's METHODS through `through`, until the context is left."""
    write_prompt, build, append = stage.write_prompt, stage.build, stage.append
    made: list[Attend] = []  # by the latest build

    def watched(method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: through(method, lambda: call(*arguments), arguments)

    def watched_build(seqs: list[Sequence]) -> Attend:
        made[:] = [through("build", lambda: build(seqs), (seqs,))]
        return watched("step", made[0])

    def watched_append(seqs: list[Sequence], _: Attend) -> None:
        through("append", lambda: append(seqs, made[0]), (seqs, made[0]))

    return patch.multiple(
        stage, write_prompt=watched("write_prompt", write_prompt), build=watched_build, append=watched_append
    )
