"""Builds an engine that a reproduction planned."""

from __future__ import annotations

from typing import Any

from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.planning.sizes import PlannedEngine


def engine_of(config: PlannedEngine, model: Model, **changes: Any) -> Engine:
    """Build the engine without a prefix cache and with synchronous steps.

    So a repeated prompt is computed again, and each step can be looked at. changes: other settings of the engine.
    """
    return Engine(model, **config.settings() | {"enable_prefix_caching": False, "async_scheduling": False} | changes)
