"""A slider over frames whose contract is more than a line."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

from .step_sliders import Stepper


class ContractStepper(Stepper):
    """A Stepper whose text/plain is `contract`, whole; ipywidgets alone would cut it at 110 characters."""

    def __init__(self, frames: List[str], label: str, contract: str) -> None:
        super().__init__(frames, label, contract)

    def __repr__(self) -> str:
        return self.facts

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(**options), "text/plain": repr(self)}
