"""Feature: what hangs on the steps of an engine, so that a step need not know of it."""

from __future__ import annotations

from roseinfer.sequence import Sequence

from .step import Step


class Feature:
    """Base of what hangs on an engine's steps, in the order of Engine.features. Each method does nothing by default."""

    def warm_up(self) -> None:
        """Prepare what the first steps would otherwise have to make."""

    def before_launch(self, step: Step) -> None:
        """Change or note a step that is scheduled and not launched."""

    def after_tokens(self, step: Step, done: list[Sequence]) -> None:
        """Note a step whose tokens are committed. done: the sequences that have a new token, or ended."""

    def after_drop(self) -> None:
        """Take back what was done for steps that were dropped: none is in flight now."""
