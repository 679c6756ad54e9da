"""Costs and clocks that make every time exact."""

from __future__ import annotations

from roseinfer.engine.engine import Engine
from roseinfer.simulator import StepWork


class UnitCost:
    """A second a step, or what `device` says; none of it the host's."""

    about = "a second a step"

    def __init__(self, device=lambda work: 1.0) -> None:
        self.device = device

    def seconds(self, work: StepWork) -> tuple[float, float]:
        return 0.0, self.device(work)

    def to_dict(self) -> dict[str, str]:
        return {"kind": "unit"}


class StepClock:
    """A clock that stands still but for the model, a second each time that it runs, and for sleep, which takes none."""

    def __init__(self, engine: Engine) -> None:
        self.now = 0.0
        wait = engine.runner.wait

        def wait_and_tick(step):
            tokens = wait(step)
            self.now += 1.0
            return tokens

        engine.runner.wait = wait_and_tick

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
