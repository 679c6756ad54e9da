"""How a checker says what is wrong."""

from __future__ import annotations


class Wrong(Exception):
    """Raised by a checker: the message names the mistake, in the learner's words."""


class Failed(Wrong):
    """Raised by a checker when the answer itself raised `error`: the message says on which inputs."""

    def __init__(self, inputs: str, error: Exception) -> None:
        super().__init__(inputs)
        self.error = error
