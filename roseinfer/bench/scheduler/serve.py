"""serve: the posts' benchmark on the engine's scheduler, or on a stage that generate.stream drives.

They decide what is computed when, and take the timestamps. A ServerRun computes the posts' times from these.
"""

from __future__ import annotations

import zlib
from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from time import perf_counter
from typing import Any

import torch

from roseinfer.arguments import require_count
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.drive import Queue, drive
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.generate import stream
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.planning.definitions import METRICS_BY_NAME
from roseinfer.profiling import Trace, capture
from roseinfer.profiling.clock import Clock, seconds_of
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..contenders import blocks_for, stage_for

MODE = "online"  # the posts' name for it: requests join as others end
SEED = 0
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once. Raises ValueError for no prompts, and for one without a token.

    Args:
        prompts: the text of each request.
        encode: turns a text into token ids; a run times it.
        params: how the tokens of every request are chosen.
        pretok: whether prompts are encoded before the clock starts, so that a run's time has no part of it.
    """

    prompts: abc.Sequence[str]
    encode: Encode
    params: SamplingParams
    pretok: bool = False

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("prompts must be at least one, got none")
        for prompt, token_ids in zip(self.prompts, self.token_ids, strict=True):
            if not token_ids:
                raise ValueError(f"prompt must have at least one token, got {prompt!r}")

    @cached_property
    def token_ids(self) -> list[list[int]]:
        """The token ids of each prompt."""
        encoded = {prompt: self.encode(prompt) for prompt in dict.fromkeys(self.prompts)}
        return [encoded[prompt] for prompt in self.prompts]

    @property
    def prompt_lens(self) -> list[int]:
        return list(map(len, self.token_ids))


def words_as_tokens(vocab_size: int) -> Encode:
    """Make an encoding for random weights, which have no tokenizer: each word is one token, always the same one."""
    return lambda text: [zlib.crc32(word.encode()) % vocab_size for word in text.split()]


@dataclass(frozen=True)
class ServerRun:
    """One run.

    Args:
        seqs: the requests in the order in which they came, with their tokens.
        encode_seconds: what encoding each prompt took, 0 with pretok.
        times: the timestamps of each request.
        steps: all steps in order.
    """

    seqs: list[Sequence]
    encode_seconds: list[float]
    times: list[SequenceTimes]
    steps: list[StepRecord] = field(default_factory=list)

    @property
    def context_lens(self) -> dict[StepRecord, list[int]]:
        """For each step, the tokens that the new one of each decoding sequence attends to, itself included."""
        lens: dict[StepRecord, list[int]] = {step: [] for step in self.steps}
        for seq, own in zip(self.seqs, self.times, strict=True):
            for place, step in enumerate(own.steps[1:], 1):
                lens[step].append(seq.num_prompt_tokens + place)
        return lens

    @property
    def decode_steps(self) -> dict[StepRecord, list[int]]:
        """The context_lens of the steps without a prompt in them."""
        return {step: lens for step, lens in self.context_lens.items() if len(lens) == step.num_tokens}

    @property
    def step_seconds(self) -> dict[StepRecord, float]:
        """For each step, the seconds until its sequences have their tokens.

        A step begins with its scheduling, or with the end of the step before where that comes later: then it was
        launched ahead, and no time may count for two steps.
        """
        ends = [-inf, *(step.finish for step in self.steps[:-1])]
        return {step: step.finish - max(step.scheduled, end) for step, end in zip(self.steps, ends, strict=True)}

    @property
    def decode_step_seconds(self) -> list[float]:
        """The step_seconds of the steps without a prompt in them."""
        seconds = self.step_seconds
        return [seconds[step] for step in self.decode_steps]

    @property
    def decode_seconds(self) -> float:
        return sum(self.decode_step_seconds)

    @property
    def total_seconds(self) -> float:
        """Seconds of all encoding and all steps."""
        return sum(self.encode_seconds) + sum(self.step_seconds.values())

    @property
    def prompt_tokens(self) -> int:
        return sum(seq.num_prompt_tokens for seq in self.seqs)

    @property
    def completion_tokens(self) -> int:
        return sum(len(seq.output_ids) for seq in self.seqs)

    @property
    def ttft(self) -> list[float]:
        """Seconds to each request's first token as the posts define them: its own work alone, without the queue."""
        return self._seconds_to(0)

    @property
    def latency(self) -> list[float]:
        """Seconds to each request's last token, without the queue as well."""
        return self._seconds_to(-1)

    @property
    def tpot(self) -> list[float]:
        """Seconds per output token after the first one, of each request that has several."""
        return [seconds for own in self.times for seconds in METRICS_BY_NAME["tpot"].values(own)]

    def _seconds_to(self, token: int) -> list[float]:
        each = zip(self.encode_seconds, self.times, strict=True)
        return [encoding + own.steps[token].finish - own.first_scheduled for encoding, own in each]

    def to_dict(self) -> dict[str, Any]:
        """Return the run for JSON: every raw time, in seconds by the run's clock."""
        requests = [
            {
                "prompt_len": seq.num_prompt_tokens,
                "output_ids": seq.output_ids,
                "encode_seconds": encoding,
                "arrival": own.arrival,
                "first_scheduled": own.first_scheduled,
                "finish": [step.finish for step in own.steps],
            }
            for seq, encoding, own in zip(self.seqs, self.encode_seconds, self.times, strict=True)
        ]
        seconds = self.step_seconds
        steps = [
            {"seconds": seconds[step], "prompt_tokens": step.num_tokens - len(lens), "context_lens": lens}
            for step, lens in self.context_lens.items()
        ]
        return {"mode": MODE, "requests": requests, "steps": steps}


class EngineQueue:
    """The finished engine as it is: on a GPU it launches the next step before it reads the tokens of this one."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        engine.warm_up()
        engine.metrics.clock = clock
        self.engine, self.add = engine, engine.add

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    def step(self) -> StepRecord:
        """Let the engine go on until a step has ended, and return that one."""
        metrics = self.engine.metrics
        num_ended = metrics.num_steps
        while metrics.num_steps == num_ended:  # a call that only launches a step ends none
            self.engine.step()
        return metrics.history[-1]


class StageQueue:
    """A stage that generate.stream drives: prefill a request when there is a place, then decode all that run."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self.stage, self.clock = stage, clock
        self.seqs: list[Sequence] = []
        self.times: dict[int, SequenceTimes] = {}  # by seq_id

    def add(self, seq: Sequence, arrival: float) -> SequenceTimes:
        self.seqs.append(seq)
        times = self.times[seq.seq_id] = SequenceTimes(arrival)
        return times

    @property
    def has_work(self) -> bool:
        return not all(seq.finish_reason for seq in self.seqs)

    @cached_property
    def tokens(self) -> Iterator[tuple[Sequence, int]]:
        return stream(self.stage, self.seqs)

    def step(self) -> StepRecord:
        """Call the stage once, and do what stream does before and after the call."""
        running = [seq for seq in self.seqs if seq.output_ids and not seq.finish_reason]
        began = self.clock()
        first, _ = next(self.tokens)
        ended = self.clock()
        is_decode = first in running
        done = running if is_decode else [first]
        for _ in done[1:]:
            next(self.tokens)  # the other tokens of the same call
        num_tokens = len(done) if is_decode else first.num_prompt_tokens
        record = StepRecord(began, began, ended, ended, num_tokens, len(done))
        for seq in done:
            self.times[seq.seq_id].add(record, 1, bool(seq.finish_reason))
        return record


def serve(
    stage_class: type[Stage],
    model: Model,
    workload: Workload,
    max_batch_size: int = 8,
    *,
    profile: bool = False,
    prefix_caching: bool = True,
    clock: Clock = perf_counter,
) -> tuple[ServerRun, Trace | None]:
    """Serve requests that all come at once, on a fresh stage, which is made before the clock starts.

    Where tokens are drawn, every run draws the same ones. Raises ValueError for a request that can never fit, and for a
    profile of fewer than six steps.

    Args:
        stage_class: what runs; EngineStage is the engine with its own scheduler.
        model: its model.
        workload: the requests.
        max_batch_size: how many run at a time.
        profile: also trace three decode steps, after one that is not profiled and two to warm up.
        prefix_caching: whether the engine shares prefixes.
        clock: gives seconds.
    """
    require_count("max_batch_size", max_batch_size, at_least=1)
    num_requests = len(workload.prompts)
    queue = queue_for(stage_class, model, workload, min(max_batch_size, num_requests), prefix_caching, clock)
    torch.manual_seed(SEED)
    seqs = [Sequence(list(token_ids), workload.params) for token_ids in workload.token_ids]
    encodings = [] if workload.pretok else [partial(workload.encode, prompt) for prompt in workload.prompts]
    encode_seconds = [seconds_of(encode, clock) for encode in encodings] or [0.0] * num_requests
    arrival = clock()
    run = ServerRun(seqs, encode_seconds, [queue.add(seq, arrival) for seq in seqs])
    trace = profile_steps(run, queue) if profile else None
    run.steps.extend(drive(queue))
    return run, trace


def queue_for(
    stage_class: type[Stage], model: Model, workload: Workload, places: int, prefix_caching: bool, clock: Clock
) -> EngineQueue | StageQueue:
    """Make a queue with the blocks that all requests need at their longest, whatever the number of places."""
    longest = [length + workload.params.most_tokens for length in workload.prompt_lens]
    if not issubclass(stage_class, EngineStage):
        return StageQueue(stage_for(stage_class, model, longest, max_num_seqs=places), clock)
    engine = Engine(
        prepared_copy(model),
        num_blocks=blocks_for(longest),
        block_size=BLOCK_SIZE,
        max_num_seqs=places,
        enforce_eager=stage_class.enforce_eager,
        enable_prefix_caching=prefix_caching,
    )
    return EngineQueue(engine, clock)


def profile_steps(run: ServerRun, queue: Queue[StepRecord]) -> Trace:
    """Profile decode steps by the posts' schedule: wait for one, warm up for two, record three."""

    def decode_step() -> None:
        done = len(run.decode_steps)
        while len(run.decode_steps) == done:
            if not queue.has_work:
                raise ValueError(
                    "a profile takes six decode steps (wait 1, warm up 2, record 3), and no sequence is left to "
                    f"decode after {done}; ask for more tokens or requests"
                )
            run.steps.append(queue.step())

    return capture(decode_step, steps=3, warmup=2)
