"""count_steps: how many steps a contest's run takes with a policy, by the engine's scheduler without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from course.contest.entry import BASELINE, ROOM
from course.contest.places import asked
from course.contest.workload import workload_of
from roseinfer.display.table import Table
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.policies import Policy
from roseinfer.engine.scheduler import Scheduler

from ..views.rows_table import table

MAX_MODEL_LEN = 512  # of the bundled model


def count_steps(policy: str | Policy, seed: int, workload: str = "mixed") -> int:
    """Count the steps until the last request of that run has ended, with the engine's scheduler and no model.

    policy: as EngineConfig takes it. Raises ValueError for an unknown workload, and the policy's own error for a
    request that it refuses.
    """
    config = EngineConfig(**{**BASELINE, **ROOM, "scheduling_policy": policy})
    scheduler = Scheduler.of(config, MAX_MODEL_LEN)
    for one in workload_of(workload).draw(seed):
        seq = asked(one.prompt, one.max_tokens)
        scheduler.policy.check(seq.params)
        scheduler.add(seq)
    steps = 0
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step is not None, "it has work"
        scheduler.commit(step, [0] * len(step.chosen))
        steps += 1
    return steps


def compare_policies(policies: Mapping[str, str | Policy], workloads: Sequence[str], num_runs: int = 10) -> Table:
    """Compare policies, by name, by their mean number of steps over runs 0 to num_runs - 1 of each workload."""
    rows = [
        {
            "workload": workload,
            "policy": name,
            "steps": mean(count_steps(policy, run, workload) for run in range(num_runs)),
        }
        for workload in workloads
        for name, policy in policies.items()
    ]
    return table(rows, title=f"steps of a run, mean of {num_runs} runs", formats={"steps": "{:.1f}"})
