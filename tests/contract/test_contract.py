"""What every stage promises, and the engine behind the first seam. A stage gets all of this by standing in LADDER."""

from __future__ import annotations

import pytest

from roseinfer.contract import PROMISES, Promise
from roseinfer.engine.as_stage import EngineStage
from roseinfer.stage import Stage
from stages import LADDER

STAGES = [*LADDER, EngineStage]


@pytest.mark.parametrize("stage_class", STAGES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_promise(stage_class: type[Stage], promise: Promise):
    promise.check(stage_class, "cpu")


@pytest.mark.parametrize("stage_class", LADDER, ids=lambda cls: cls.name)
def test_is_named_after_its_module(stage_class: type[Stage]):
    assert stage_class.__module__ == f"stages.{stage_class.name}"
