"""count_steps: how many steps a contest's run takes with a policy, by the engine's scheduler without a model."""

from __future__ import annotations

from roseinfer.contest.entry import BASELINE, ROOM
from roseinfer.contest.workload import MIXED, Workload
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.policies import Policy
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import SamplingParams, Sequence

MAX_MODEL_LEN = 512  # of the bundled model


def count_steps(policy: str | Policy, seed: int, workload: Workload = MIXED) -> int:
    """Steps until the last request of that run has ended. policy: as EngineConfig takes it."""
    config = EngineConfig(**{**BASELINE, **ROOM, "scheduling_policy": policy})
    scheduler = Scheduler.of(config, MAX_MODEL_LEN, (), b"")
    for one in workload.draw(seed):
        scheduler.add(Sequence(one.prompt, SamplingParams(max_tokens=one.max_tokens, ignore_eos=True)))
    steps = 0
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step is not None, "it has work"
        scheduler.commit(step, [0] * len(step.chosen))
        steps += 1
    return steps
