"""How a checker says what is wrong, and what stands for an error that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Wrong(Exception):
    """Raised by a checker: the message names the mistake, in the learner's words."""


class Failed(Wrong):
    """Raised by a checker when the answer itself raised `error`: the message says on which inputs."""

    def __init__(self, inputs: str, error: Exception) -> None:
        super().__init__(inputs)
        self.error = error


@dataclass(frozen=True)
class Refusal:
    """What stands for the value of a call that has to raise such an error, and does."""

    kind: type[Exception]

    def __repr__(self) -> str:
        return "an error" if self.kind is Exception else f"a {self.kind.__name__}"


def value_or_refusal(call: Callable[[], Any], is_due: bool, kind: type[Exception] = ValueError) -> Any:
    """Return what `call` returns, or a Refusal when it raises such an error and one is due; raise any other error."""
    try:
        return call()
    except kind:
        if not is_due:
            raise
        return Refusal(kind)
