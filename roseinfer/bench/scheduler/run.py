"""ServerRun: what one run of the benchmark was like, in the timestamps that the engine takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.planning.definitions import METRICS_BY_NAME
from roseinfer.sequence import Sequence


@dataclass(frozen=True)
class ServedStep:
    """One step. seconds: from the beginning of its scheduling until its sequences have their tokens.

    prompt_tokens: tokens of prompts that it computed, 0 in a decode step. context_lens: of each sequence that decodes
    in it, the tokens that its new token attends to, itself included.
    """

    seconds: float
    prompt_tokens: int
    context_lens: tuple[int, ...]

    @classmethod
    def of(cls, step: StepRecord, done: list[Sequence]) -> ServedStep:
        """Make it of a step and the sequences that have one token more: their first one came from their prompt."""
        decoded = [seq for seq in done if len(seq.output_ids) > 1]
        context_lens = tuple(len(seq) - 1 for seq in decoded)
        return cls(step.finish - step.scheduled, step.num_tokens - len(decoded), context_lens)

    @property
    def batch_size(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class ServedRequest:
    """One request. output_ids: with the token that ended it. encode_seconds: of its text, 0 if that was done before."""

    prompt_len: int
    output_ids: tuple[int, ...]
    encode_seconds: float
    times: SequenceTimes

    @property
    def first_scheduled(self) -> float:
        return self.times.first_scheduled

    @property
    def ttft(self) -> float:
        """Time to the first token as the posts define it: of the request's own work alone, without the queue."""
        return self.encode_seconds + self._value("ttft") - self._value("waiting_time")

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first one; None for a request of one token."""
        return self._value("tpot")

    @property
    def latency(self) -> float:
        """Latency as the posts define it, without the queue as well."""
        return self.encode_seconds + self._value("e2e_latency") - self._value("waiting_time")

    def _value(self, metric: str) -> Any:
        """Return a metric as the engine defines it; None for one that this request lacks."""
        return next(iter(METRICS_BY_NAME[metric].values(self.times)), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_len": self.prompt_len,
            "output_ids": self.output_ids,
            "encode_seconds": self.encode_seconds,
            "arrival": self.times.arrival,
            "first_scheduled": self.first_scheduled,
            "finish": [step.finish for step in self.times.steps],
        }


@dataclass(frozen=True)
class ServerRun:
    """One run of one mode. requests: in the order in which they came."""

    mode: str
    requests: tuple[ServedRequest, ...]
    steps: tuple[ServedStep, ...]

    @property
    def decode_steps(self) -> list[ServedStep]:
        """The steps without a prompt in them."""
        return [step for step in self.steps if not step.prompt_tokens]

    @property
    def prefill_seconds(self) -> float:
        encoding = sum(request.encode_seconds for request in self.requests)
        return encoding + sum(step.seconds for step in self.steps if step.prompt_tokens)

    @property
    def decode_seconds(self) -> float:
        return sum(step.seconds for step in self.decode_steps)

    @property
    def total_seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_len for request in self.requests)

    @property
    def completion_tokens(self) -> int:
        return sum(len(request.output_ids) for request in self.requests)

    def to_dict(self) -> dict[str, Any]:
        """Return the run for JSON: every raw time, in seconds by the run's clock."""
        return {
            "mode": self.mode,
            "requests": [request.to_dict() for request in self.requests],
            "steps": [asdict(step) for step in self.steps],
        }
