"""The simulator: the engine's own scheduler and block manager, with a cost model and a clock in place of a model."""

from .arrivals import Arrival, at_once, bursts, poisson, read_trace
from .cluster import ROUTERS, Cluster
from .cost import Cost, FittedCost, FloorCost, StepSample, cost_from, fit, floor_cost
from .measure import step_samples
from .replica import EngineSetting
from .result import Simulation, simulations
from .validation import Validation, validate
from .work import StepWork, work_of

__all__ = [
    "ROUTERS", "Arrival", "Cluster", "Cost", "EngineSetting", "FittedCost", "FloorCost", "Simulation", "StepSample",
    "StepWork", "Validation", "at_once", "bursts", "cost_from", "fit", "floor_cost", "poisson", "read_trace",
    "simulations", "step_samples", "validate", "work_of",
]  # fmt: skip
