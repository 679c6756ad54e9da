"""The finished engine as a report races it: with graphs, as it comes, and without."""

from __future__ import annotations

from roseinfer.engine.as_stage import EngineStage


class EagerEngine(EngineStage):
    """Every decode step launched kernel by kernel."""

    name = "engine_eager"
    enforce_eager = True


ENGINES = (EagerEngine, EngineStage)
