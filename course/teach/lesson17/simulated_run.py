"""simulate: requests through the engine's scheduler without a model, by a clock of steps or of a cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roseinfer.arrivals import Arrival
from roseinfer.engine.policies import Policy
from roseinfer.simulator import Cluster, Cost, EngineSetting, StepWork


class StepCost:
    """A cost by which every step lasts 1."""

    about = "every step lasts 1"

    def seconds(self, work: StepWork) -> tuple[float, float]:
        return 0.0, 1.0

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "steps"}


def simulate(
    arrivals: Sequence[Arrival], setting: EngineSetting, policy: str | Policy, cost: Cost | None = None
) -> Cluster:
    """Run all arrivals under one policy. cost: of a step; None: every step lasts 1, so that times are in steps."""
    cluster = Cluster(replace(setting, scheduling_policy=policy), cost or StepCost())
    cluster.run(list(arrivals))
    return cluster
