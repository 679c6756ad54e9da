"""simulate_load: requests by the clock through the engine's own scheduler, with stated costs, and how good it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roseinfer.arrivals import Arrival, poisson
from roseinfer.planning.definitions import percentile
from roseinfer.simulator import Cluster, EngineSetting, StepWork
from roseinfer.simulator.replica import Replica, SimulatedRequest

RECENT_ENDS = 32  # that an admission rule is told
SLOTS, BLOCK_SIZE, LONGEST = 8, 16, 128
PROMPT_LENS, OUTPUT_LENS = (16, 48), (16, 32)
TTFT_LIMIT, TPOT_LIMIT = 0.25, 0.025  # seconds
SEED = 20

Admit = Callable[[int, int, list[float], float], Any]  # num_queued, num_free, ends, limit


@dataclass(frozen=True)
class StatedCost:
    """A cost with stated, not measured, seconds: of a step, of each sequence in it, of each prompt token."""

    step: float = 0.005
    sequence: float = 0.0005
    prompt_token: float = 0.00005
    about: str = "stated times, not measured ones"

    def seconds(self, work: StepWork) -> tuple[float, float]:
        return 0.0, self.step + self.sequence * work.num_seqs + self.prompt_token * work.prompt_tokens

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "stated", "step": self.step, "sequence": self.sequence, "prompt_token": self.prompt_token}


def a_server() -> EngineSetting:
    """Describe an engine with room for all requests that run."""
    return EngineSetting(
        num_blocks=SLOTS * LONGEST // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=SLOTS,
        max_model_len=LONGEST,
        enable_prefix_caching=False,
    )


@dataclass(frozen=True)
class SimulatedLoad:
    """A simulated load.

    rate: requests a second that were asked for. seconds: for which they came. requests: those that were let in, all
    ended. refused: how many were not.
    """

    rate: float
    seconds: float
    requests: Sequence[SimulatedRequest]
    refused: int

    @property
    def arrival_rate(self) -> float:
        """Requests a second that came and were let in: near to `rate`, but not equal, since arrivals are drawn."""
        arrivals = [one.arrival.seconds for one in self.requests]
        return len(arrivals) / (max(arrivals) - min(arrivals))

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last token."""
        return max(one.end for one in self.requests) - min(one.arrival.seconds for one in self.requests)

    @property
    def throughput(self) -> float:
        """Answers a second."""
        return len(self.requests) / self.duration

    @property
    def goodput(self) -> float:
        """Answers a second within both limits."""
        return sum(map(is_good, self.requests)) / self.duration

    @property
    def p99_ttft(self) -> float:
        """99th percentile in seconds, of requests that were let in."""
        return percentile(sorted(map(ttft, self.requests)), 99)


def ttft(request: SimulatedRequest) -> float:
    return request.times.steps[0].finish - request.arrival.seconds


def is_good(request: SimulatedRequest) -> bool:
    steps = request.times.steps
    gaps = len(steps) - 1
    tpot = (steps[-1].finish - steps[0].finish) / gaps if gaps else 0.0
    return ttft(request) <= TTFT_LIMIT and tpot <= TPOT_LIMIT


def simulate_load(rate: float, seconds: float, admit: Admit | None = None) -> SimulatedLoad:
    """Simulate rate * seconds requests, a Poisson process, on a server of eight slots.

    The same seed for every rate gives the same requests, closer together. admit: as exercise 20.4 has it.
    """
    count = round(rate * seconds)
    arrivals = poisson(count, rate, prompt_lens=PROMPT_LENS, output_lens=OUTPUT_LENS, seed=SEED)

    def is_let_in(replica: Replica) -> bool:
        assert admit is not None, "without a rule none is asked"
        scheduler, ends = replica.scheduler, sorted(one.end for one in cluster.requests if one.times.has_ended)
        num_free = SLOTS - len(scheduler.running)
        return bool(admit(scheduler.num_waiting, num_free, ends[-RECENT_ENDS:], TTFT_LIMIT))

    cluster = Cluster(a_server(), StatedCost(), admit=is_let_in if admit else None)
    cluster.run(list[Arrival](arrivals))
    return SimulatedLoad(rate, seconds, cluster.requests, len(cluster.refused))
