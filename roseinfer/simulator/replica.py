"""Replica: the engine's own scheduler, block manager and prefix cache, with a clock in place of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from roseinfer.arguments import require_count
from roseinfer.arrivals import Arrival
from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.engine import checked_budget
from roseinfer.engine.metrics import SequenceTimes, Step
from roseinfer.engine.policies import Policy, policy_for
from roseinfer.engine.prefix_cache import PrefixCache
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import SamplingParams, Sequence

from .cost import Cost
from .work import work_of

MOST_BLOCKS, MOST_SEQS = 1_000_000, 100_000  # of a replica, whose books are real
NEW_TOKEN = 0  # every token that a sequence gets; no prompt has it


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """An engine without a model; its sizes as Engine has them. Raises ValueError as Engine does."""

    num_blocks: int
    block_size: int = 64
    max_num_seqs: int = 64
    max_model_len: int = 4096
    max_num_batched_tokens: int | None = None
    scheduling_policy: str | Policy = "fcfs"
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        require_count("num_blocks", self.num_blocks, at_least=1, at_most=MOST_BLOCKS)
        require_count("max_num_seqs", self.max_num_seqs, at_least=1, at_most=MOST_SEQS)
        for name in ("block_size", "max_model_len"):
            require_count(name, getattr(self, name), at_least=1)
        object.__setattr__(self, "max_num_batched_tokens",
                           checked_budget(self.max_num_batched_tokens, self.max_num_seqs))  # fmt: skip
        policy_for(self.scheduling_policy)

    def scheduler(self) -> Scheduler:
        """As Engine builds it, with an empty pool."""
        cache = PrefixCache(self.block_size) if self.enable_prefix_caching else None
        max_blocks = min(self.num_blocks, -(-self.max_model_len // self.block_size))
        blocks = BlockManager(self.num_blocks, self.block_size, self.max_num_seqs, max_blocks, cache)
        return Scheduler(blocks, self.max_num_batched_tokens, (), policy_for(self.scheduling_policy))

    def check_fits(self, arrivals: list[Arrival]) -> None:
        """Raises ValueError for a request that this engine would refuse, as too long for a sequence or for the pool."""
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
    """A request, where it went, and its timestamps as the engine keeps them, in seconds of the simulation."""

    arrival: Arrival
    replica: int
    times: SequenceTimes = field(init=False)

    def __post_init__(self) -> None:
        self.times = SequenceTimes(self.arrival.seconds)


class Replica:
    """One engine. requests: those that wait or run, by seq_id. load: the tokens that these have now. host, device:
    seconds of all steps begun, by their part.
    """

    def __init__(self, index: int, setting: EngineSetting, cost: Cost) -> None:
        self.index, self.cost = index, cost
        self.scheduler = setting.scheduler()
        self.requests: dict[int, SimulatedRequest] = {}
        self.load = self.num_steps = self.num_rows = 0
        self.host = self.device = 0.0
        self._began = 0.0
        self._step: tuple[list[Sequence], list[int]] | None = None
        self._unscheduled: set[int] = set()

    @property
    def is_idle(self) -> bool:
        return self._step is None and not self.requests

    def add(self, request: SimulatedRequest, token_ids: list[int]) -> None:
        seq = Sequence(token_ids, params_of(request.arrival.output_len))
        self.requests[seq.seq_id] = request
        self.load += len(seq)
        self._unscheduled.add(seq.seq_id)
        self.scheduler.add(seq)

    def turn(self, now: float) -> float | None:
        """End the step that was begun, if there is one, and begin the next. When that ends; None: there is no work."""
        if self._step:
            self._end(now)
        return self._begin(now) if self.scheduler.has_work else None

    def _begin(self, now: float) -> float:
        self._began = now
        seqs, num_new = self._step = self.scheduler.schedule()
        if self._unscheduled:
            began = self._unscheduled.intersection([seq.seq_id for seq in seqs])
            self._unscheduled -= began
            for seq_id in began:
                self.requests[seq_id].times.first_scheduled = now
        host, device = self.cost.seconds(work_of(seqs, num_new))
        self.num_steps += 1
        self.num_rows += len(seqs)
        self.host += host
        self.device += device
        return now + host + device

    def _end(self, now: float) -> None:
        seqs, num_new = self._step
        self._step = None
        is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])
        done = self.scheduler.commit(seqs, num_new, [NEW_TOKEN] * (len(seqs) - is_cut))
        self.load += len(done)
        step = Step(self._began, None, None, now)
        for seq in done:
            times = self.requests[seq.seq_id].times
            times.steps.append(step)
            if seq.finish_reason:
                self.load -= len(seq)
                times.ended = now
                del self.requests[seq.seq_id]


@lru_cache(maxsize=4096)
def params_of(output_len: int) -> SamplingParams:
    return SamplingParams(max_tokens=output_len, ignore_eos=True)


def prompt_of(number: int, arrival: Arrival) -> list[int]:
    """Token ids of a prompt: its prefix, then tokens that no other request has."""
    text, shared = arrival.prefix or (0, 0)
    return [1 + 2 * text] * shared + [2 + 2 * number] * (arrival.prompt_len - shared)
