"""A request's timestamps, as post 003 names them, taken while a stage runs for real."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from roseinfer.generate import stream
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .timed_model import TimedModel


@dataclass
class RequestTimes:
    """steps: for each token the timestamps of the step that made it; all in seconds of one clock.

    scheduled_ts: the loop hands the request to the stage. inference_begin_ts and inference_end_ts: the model's forward.
    finish_ts: the token is sampled and handed out.
    """

    arrival_ts: float
    steps: list[dict[str, float]] = field(default_factory=list)

    def timestamps(self, step: int) -> dict[str, float]:
        """All six timestamps of the post for one of its tokens."""
        request = {"arrival_ts": self.arrival_ts, "first_scheduled_ts": self.steps[0]["scheduled_ts"]}
        return request | self.steps[step]

    @property
    def first_token(self) -> float:
        """TTFT: from arrival to the first token, in seconds."""
        return self.steps[0]["finish_ts"] - self.arrival_ts

    @property
    def done(self) -> float:
        """From arrival to the last token, in seconds."""
        return self.steps[-1]["finish_ts"] - self.arrival_ts


class _NotedStage:
    """Stands in for a stage in generate.stream: notes when sequences are handed over, and when their model ran."""

    def __init__(self, stage: Stage, times: dict[int, RequestTimes]) -> None:
        self._stage = stage
        self._model: TimedModel = stage.model
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def prefill(self, seq: Sequence) -> Tensor:
        scheduled = self._model.now()
        logits = self._stage.prefill(seq)
        self._note([seq], scheduled)
        return logits

    def decode(self, seqs: list[Sequence]) -> Tensor:
        scheduled = self._model.now()
        logits = self._stage.decode(seqs)
        self._note(seqs, scheduled)
        return logits

    def _note(self, seqs: list[Sequence], scheduled: float) -> None:
        began, ended = self._model.calls[-1]
        for seq in seqs:
            step = {"scheduled_ts": scheduled, "inference_begin_ts": began, "inference_end_ts": ended}
            self._times[seq.seq_id].steps.append(step)


def record_times(stage: Stage, seqs: List[Sequence]) -> list[RequestTimes]:
    """Run all sequences to their end, all arriving at once. The stage's model must be a TimedModel."""
    now = stage.model.now
    times = {seq.seq_id: RequestTimes(now()) for seq in seqs}
    for seq, _ in stream(_NotedStage(stage, times), seqs):
        times[seq.seq_id].steps[-1]["finish_ts"] = now()
    return [times[seq.seq_id] for seq in seqs]
