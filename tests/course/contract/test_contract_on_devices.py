"""What every stage promises, and the engine behind the first seam. A stage gets all of this by standing in LADDER."""

from __future__ import annotations

import pytest
import torch
from devices import CUDA, ByModule
from tiers import in_every_run

from course.contract import PROMISES, Promise
from course.contract.promises import choices as choice_promises
from course.contract.promises import reuse as reuse_promises
from course.contract.promises import tokens as token_promises
from roseinfer.engine.as_stage import EngineStage
from roseinfer.stage import Stage
from stages import LADDER, FewLaunches, NaiveCat, TritonPaged

pytestmark = pytest.mark.slow


class EngineAsOnGPU(EngineStage):
    """Decode steps filled up to few sizes, each captured when it first comes."""

    name = "engine_as_on_gpu"
    make_runner = ByModule


STAGES = [*LADDER, EngineStage, EngineAsOnGPU]
# Frozen stages between two that are tried in every run: each differs by one change from the next.
BETWEEN = ("s02", "s03", "s04", "s06", "s09", "s11", "s12", "s13", "s14", "s15", "s16", "s17", "s18")
# What a kernel computes, where its rows and blocks end. In Triton's interpreter most of the others take seconds each.
INTERPRETED = ("fits_the_seam", "equal_lengths", "mixed_lengths", "block_edges", "small_blocks", "misuse")


# What a change of a stage breaks in shorter runs, too: of the first stage and of the engine in every run.
LONG = ("equals_transformers_in_full_size", "very_long_sequences")


def is_daily(promise: Promise, stage_class: type[Stage]) -> bool:
    if stage_class in (TritonPaged, FewLaunches):
        return promise.name in INTERPRETED
    if promise.name in LONG:
        return stage_class in (NaiveCat, EngineStage)
    return not stage_class.name.startswith(BETWEEN)


CASES = {f"{promise.name}-{cls.name}": (promise, cls) for cls in STAGES for promise in PROMISES}
DAILY = [name for name, case in CASES.items() if is_daily(*case)]


@pytest.mark.parametrize(("promise", "stage_class"), in_every_run(CASES, DAILY))
def test_promise(promise: Promise, stage_class: type[Stage]):
    promise.check(stage_class, "cpu")


# What a device can change. Blocks, errors, refusals and sizes are the host's, which is the same beside any device.
DEVICE_PROMISES = {module.__name__ for module in (token_promises, choice_promises, reuse_promises)}
ON_A_GPU = [promise for promise in PROMISES if promise.check.__module__ in DEVICE_PROMISES]


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("stage_class", [*LADDER, EngineStage], ids=lambda cls: cls.name)
@pytest.mark.parametrize("promise", ON_A_GPU, ids=lambda promise: promise.name)
def test_promise_on_a_gpu(stage_class: type[Stage], promise: Promise, device: str):
    """Tokens, half precision, graphs and overlap of every stage, on tensors of that device."""
    if reason := stage_class.why_untimed(torch.device(device)):
        pytest.skip(reason)
    promise.check(stage_class, device)


@pytest.mark.parametrize("stage_class", LADDER, ids=lambda cls: cls.name)
def test_is_named_after_its_module(stage_class: type[Stage]):
    assert stage_class.__module__ == f"stages.{stage_class.name}"
