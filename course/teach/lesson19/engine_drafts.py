"""race_engine_drafts: the engine with drafts, which it makes where they pay, beside the engine without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from roseinfer.display.table import Table
from roseinfer.engine.engine import Engine
from roseinfer.engine.speculation.settings import NGRAM, SpeculativeConfig
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy

from .draft_race import LIVE, Prompts, measured_rows, shown

COUNTS = ["steps", "drafted", "accepted"]  # follow from measured times here: the engine drafts where it pays


class EngineAlone:
    """An Engine under the names that a stage has."""

    name = "engine"
    speculative: ClassVar[SpeculativeConfig | None] = None

    def __init__(self, model: Model, **sizes: Any) -> None:
        self.engine = Engine(prepared_copy(model), speculative=self.speculative, **sizes)
        self.add, self.step = self.engine.add, self.engine.step

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    @property
    def num_drafted(self) -> int:
        return self.engine.metrics.num_drafted

    @property
    def num_accepted(self) -> int:
        return self.engine.metrics.num_accepted


class EngineDrafts(EngineAlone):
    name = "engine, drafts"
    speculative = SpeculativeConfig(method=NGRAM)


def race_engine_drafts(
    model: Model, batches: Mapping[str, Prompts], max_tokens: int = 64, temperature: float = 0.0
) -> Table:
    """Race the engine without drafts and with them, as race_drafts does stages. All counts of steps are live."""
    measured = measured_rows([EngineAlone, EngineDrafts], model, batches, max_tokens, temperature)
    return shown(*measured, [*LIVE, *COUNTS])
