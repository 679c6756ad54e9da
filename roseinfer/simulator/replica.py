"""Replica: the engine's own scheduler, block manager and prefix cache, with a clock in place of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from roseinfer.arguments import refuse_wrong_arguments, require_count
from roseinfer.arrivals import Arrival
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.scheduler import Scheduler
from roseinfer.engine.speculation.settings import SpeculativeConfig
from roseinfer.engine.step import Step, StepRecord
from roseinfer.sequence import SamplingParams, Sequence

from .cost import Cost
from .work import work_of

MOST_BLOCKS, MOST_SEQS = 1_000_000, 100_000  # of a replica, whose books are real
NEW_TOKEN = 0  # every token that a sequence gets; no prompt has it


@refuse_wrong_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting(EngineConfig):
    """An engine without a model, so its steps take turns and have no drafts, which only a model could accept.

    How a step is run is the cost's business.
    """

    max_model_len: int = 4096
    enforce_eager: bool = field(init=False, default=False)
    async_scheduling: bool | None = field(init=False, default=None)
    speculative: SpeculativeConfig | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        require_count("num_blocks", self.num_blocks, at_least=1, at_most=MOST_BLOCKS)
        require_count("max_num_seqs", self.max_num_seqs, at_least=1, at_most=MOST_SEQS)
        require_count("max_model_len", self.max_model_len, at_least=1)
        EngineConfig.__post_init__(self)

    def check_fits(self, arrivals: list[Arrival]) -> None:
        """Raise ValueError for a request that this engine would refuse, as too long for a sequence or for the pool."""
        longest = min(self.max_model_len, self.num_blocks * self.block_size + 1)  # the last token is never cached
        for i, arrival in enumerate(arrivals):
            if arrival.prompt_len + arrival.output_len > longest:
                raise ValueError(
                    f"arrivals[{i}] can never fit: prompt_len={arrival.prompt_len} + output_len={arrival.output_len}, "
                    f"allowed: {longest} tokens, with max_model_len={self.max_model_len} and num_blocks="
                    f"{self.num_blocks} of {self.block_size} tokens"
                )


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request, its replica and, once it is there, its timestamps from the engine, in seconds of the simulation."""

    arrival: Arrival
    replica: int
    times: SequenceTimes = field(init=False)

    @property
    def end(self) -> float:
        """The time when it ended. It must have ended."""
        assert self.times.has_ended, "the request has not ended"
        return self.times.ended


class Replica:
    """One engine. requests: those that wait or run, by seq_id. host, device: seconds of all steps begun, by part."""

    def __init__(self, index: int, setting: EngineSetting, cost: Cost) -> None:
        self.index, self.cost = index, cost
        self.scheduler = Scheduler.of(setting, setting.max_model_len)
        self.requests: dict[int, SimulatedRequest] = {}
        self.num_steps = self.num_rows = 0
        self.host = self.device = 0.0
        self._began = 0.0
        self._step: Step | None = None

    @property
    def is_idle(self) -> bool:
        return self._step is None and not self.requests

    def add(self, request: SimulatedRequest, prompt: list[int]) -> None:
        """Queue a request with that prompt."""
        seq = Sequence(prompt, params_of(request.arrival.output_len))
        self.requests[seq.seq_id] = request
        request.times = SequenceTimes(request.arrival.seconds)
        self.scheduler.add(seq)

    def turn(self, now: float) -> float | None:
        """End the step that was begun, if any, and begin the next. Return when that ends; None: there is no work."""
        if self._step:
            self._end(now)
        return self._begin(now) if self.scheduler.has_work else None

    def _begin(self, now: float) -> float:
        self._began = now
        step = self._step = self.scheduler.schedule()
        assert step, "there is work"
        host, device = self.cost.seconds(work_of(step.seqs, step.num_new))
        self.num_steps += 1
        self.num_rows += len(step.seqs)
        self.host += host
        self.device += device
        return now + host + device

    def _end(self, now: float) -> None:
        step, self._step = self._step, None
        assert step, "one was begun"
        self.scheduler.commit(step, [NEW_TOKEN] * len(step.chosen))
        record = StepRecord(scheduled=self._began, finish=now)
        for seq, n in zip(step.seqs, step.num_given, strict=True):
            self.requests[seq.seq_id].times.add(record, n, bool(seq.finish_reason))
            if seq.finish_reason:
                del self.requests[seq.seq_id]


@lru_cache(maxsize=4096)
def params_of(output_len: int) -> SamplingParams:
    return SamplingParams(max_tokens=output_len, ignore_eos=True)


def prompt_of(number: int, arrival: Arrival) -> list[int]:
    """Make the token ids of a prompt: its prefix, then tokens that no other request has."""
    text, shared = arrival.prefix or (0, 0)
    return [1 + 2 * text] * shared + [2 + 2 * number] * (arrival.prompt_len - shared)
