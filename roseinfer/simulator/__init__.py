"""The simulator: the engine's own scheduler and block manager, with a cost model and a clock in place of a model."""

from .cluster import Cluster
from .cost import Cost, FittedCost, FloorCost, StepSample, fit, floor_cost
from .measure import step_samples
from .replica import EngineSetting
from .result import Simulation, simulations
from .routers import ROUTERS
from .work import StepWork, work_of

__all__ = [
    "ROUTERS",
    "Cluster",
    "Cost",
    "EngineSetting",
    "FittedCost",
    "FloorCost",
    "Simulation",
    "StepSample",
    "StepWork",
    "fit",
    "floor_cost",
    "simulations",
    "step_samples",
    "work_of",
]
