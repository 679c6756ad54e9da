"""count_steps: how many steps a contest's run takes with a policy, by the engine's scheduler without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean

from course.contest.entry import BASELINE, ROOM
from course.contest.places import PLACES, asked
from course.contest.workload import workload_of
from roseinfer.display.table import Table
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.policies import Policy
from roseinfer.engine.scheduler import Scheduler

from ..views.rows_table import table

MAX_MODEL_LEN = 512  # of the bundled model


def count_steps(policy: str | Policy, seed: int, workload: str = "mixed") -> int:
    """Count the steps until the last request of that run has ended, with the engine's scheduler and no model.

    policy: as EngineConfig takes it. Raises ValueError for an unknown workload, the policy's own for a request that it
    refuses, and BrokenRule for a policy that does more than to order requests.
    """
    config = EngineConfig(**{**BASELINE, **ROOM, "scheduling_policy": policy})
    scheduler = Scheduler.of(config, MAX_MODEL_LEN)
    requests = workload_of(workload).draw(seed)
    seqs = [asked(one.prompt, one.max_tokens) for one in requests]
    for number, seq in enumerate(seqs):
        scheduler.policy.check(seq.params)
        scheduler.add(seq)
        if seq.finish_reason or (seq.token_ids, seq.params.max_tokens) != requests[number][:2]:
            raise BrokenRule(f"key changed request {number}: a policy only reads a sequence")
    steps, given = 0, Counter[int]()
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step is not None, "it has work"
        if len(step.seqs) > PLACES:
            raise BrokenRule(f"step {steps} runs {len(step.seqs)} requests at a time, allowed: {PLACES}")
        scheduler.commit(step, [0] * len(step.chosen))
        given.update(seq.seq_id for seq in step.chosen)
        steps += 1
    for number, (seq, request) in enumerate(zip(seqs, requests, strict=True)):
        if given[seq.seq_id] != request.max_tokens:
            tokens = f"{given[seq.seq_id]} of its {request.max_tokens} tokens"
            raise BrokenRule(f"request {number} ends with {tokens}: a policy only reads sequences")
    return steps


class BrokenRule(ValueError):
    """A policy changed a run in another way than by ordering its requests."""


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
