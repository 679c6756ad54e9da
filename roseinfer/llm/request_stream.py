"""RequestStream: outputs of requests as they grow, which LLM.stream gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from roseinfer.engine.calls import Edge, InUse

from .live_requests import Inbox, LiveRequests
from .outputs import RequestOutput
from .request import Request


class RequestStream(Iterator[RequestOutput]):
    """An iterator over the outputs of requests. The first `next` adds them; each `next` runs steps until one has news.

    An error of a step ends all of them, and so does close(). A stream that is given up without it, as by a `break`, is
    ended by the next call of its LLM.
    """

    def __init__(self, live: LiveRequests, requests: list[Request]) -> None:
        self._live, self._requests = live, requests
        self._inbox: Inbox | None = Inbox()
        self._has_begun = False
        self._num_left = len(requests)

    def __next__(self) -> RequestOutput:
        try:
            with self._live.call() as edge:
                output = self._next(edge)
        except KeyboardInterrupt:  # also one that is delivered after the step, at the end of the call
            self.close()
            raise
        if output is None:
            raise StopIteration
        return output

    def close(self) -> None:
        """End all requests that run. In the middle of a call of the LLM they end with its next step."""
        self._inbox = None
        with suppress(InUse), self._live.call():
            self._live.end(self._requests)

    def _next(self, edge: Edge) -> RequestOutput | None:
        inbox = self._inbox
        if inbox is None or not self._num_left:
            return None
        try:
            if not self._has_begun:
                self._has_begun = True
                self._live.add(self._requests, inbox)
            while not inbox:
                self._live.step()
                edge()
        except BaseException:
            self._inbox = None
            self._live.end(self._requests)
            raise
        request = next(iter(inbox))  # one at a time: its reader may run other requests meanwhile
        del inbox[request]
        self._num_left -= request.finished
        return request.output()
