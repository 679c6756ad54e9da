"""LiveRequests: the requests of an LLM that are in its engine, and where their outputs go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from weakref import ref

from roseinfer.engine.calls import Edge, OneCaller
from roseinfer.engine.engine import Engine
from roseinfer.profiling import span

from .request import Request, Sample
from .stage_engine import AnyEngine


class Inbox(dict[Request, None]):
    """Requests with something new since they were last looked at, ordered by when that came.

    Its owner, a call of `generate` or a stream, holds the only reference to it for long. A stream that is given up is
    an inbox that is gone: nothing has to run for that, so the garbage collector may do it in the middle of a step.
    """


class LiveRequests:
    """The requests in an engine, of several owners side by side: each one's steps compute the others' requests, too."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self._live: dict[int, tuple[Request, Sample, ref[Inbox]]] = {}  # by seq_id
        self._gone: list[ref[Inbox]] = []
        self._one_caller = OneCaller("LLM")

    @contextmanager
    def call(self) -> Iterator[Edge]:
        """Enter a call of the LLM that changes what runs, one at a time and whole, see OneCaller. Raises InUse."""
        with self._one_caller.call() as edge:
            self.end_given_up()
            yield edge

    def add(self, requests: Iterable[Request], inbox: Inbox, arrival: float | None = None) -> None:
        """Let requests wait for their turn, which LLM has checked. arrival: see Engine.add. Raises as that does."""
        to = ref(inbox, self._gone.append)
        for request in requests:
            if request.num_prompt_logprobs is not None:
                assert isinstance(self.engine, Engine), "a stage has refused it"
                prompt_ids = request.samples[0].seq.token_ids
                request.prompt_logprobs = self.engine.prompt_logprobs(prompt_ids, request.num_prompt_logprobs)
            for sample in request.samples:
                sample.times = self.engine.admit(sample.seq, arrival)
                self._live[sample.seq.seq_id] = request, sample, to

    def step(self) -> int:
        """Run one step of the engine, without the requests of inboxes that are gone. Return how many tokens it gave."""
        self.end_given_up()
        seqs, num_tokens = self.engine.step(), 0
        with span("roseinfer.engine.detokenise"):
            for seq in seqs:
                request, sample, to = self._live[seq.seq_id]
                num_tokens += sample.read()
                if sample.finish_reason:
                    self._end(sample)
                    if isinstance(sample.stop_reason, str):
                        sample.drop_unread()
                if (inbox := to()) is not None:
                    inbox[request] = None
        return num_tokens

    def end_given_up(self) -> None:
        """Take the requests of inboxes that are gone out of the engine."""
        while self._gone:
            gone = self._gone.pop()
            for sample in [sample for _, sample, to in self._live.values() if to is gone]:
                self._end(sample)

    def abort(self, request_id: str) -> None:
        """End a request and put it in its inbox. Raises KeyError when it does not run."""
        for request, _, to in self._live.values():
            if request.request_id == request_id:
                self.end([request])
                if (inbox := to()) is not None:
                    inbox[request] = None
                return
        raise KeyError(request_id)

    def end(self, requests: Iterable[Request]) -> None:
        """Take what is left of requests out of the engine."""
        for request in requests:
            for sample in request.samples:
                self._end(sample)

    def _end(self, sample: Sample) -> None:
        if self._live.pop(sample.seq.seq_id, None) and sample.seq in self.engine.scheduler:
            self.engine.abort(sample.seq)
        sample.finish_reason = sample.finish_reason or "abort"
