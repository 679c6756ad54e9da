"""AsyncEngine: an LLM on a thread of its own, for an event loop in another one.

The thread is the only one that calls the LLM, from its first step to its last (see engine/calls.py). The loop
sends it functions to call between two steps, and gets news back: one call of the loop a step, whatever its batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from queue import SimpleQueue
from threading import Thread
from time import perf_counter

from roseinfer.arguments import counted
from roseinfer.llm.live_requests import Inbox, LiveRequests
from roseinfer.llm.llm import LLM
from roseinfer.llm.request import Request
from roseinfer.llm.stage_engine import AnyEngine
from roseinfer.parallel.ranks import RankFailed
from roseinfer.sequence import SamplingParams

from .engine_state import EngineState, state_of
from .errors import ApiError
from .latencies import Latencies
from .output_stream import Delta, OutputStream, Unsent

LOADING, READY, STUCK, DRAINING, FAILED = "loading", "ready", "stuck", "draining", "failed"
RECENT_ENDS = 32  # of streams, whose mean gap is what a refused client waits
MOST_RETRY_AFTER = 60  # seconds
POLL_SECONDS = 0.02  # between two looks at what has not ended
logger = logging.getLogger(__name__)

News = list[tuple[OutputStream, "list[Delta] | Exception"]]


def not_serving(why: str, retry_after: int) -> ApiError:
    """Return the error while the engine loads its model or drains, and after it has failed. retry_after: seconds."""
    return ApiError(why, status=503, code="not_serving", headers={"Retry-After": str(retry_after)})


class AsyncEngine:
    """An LLM on a thread of its own. make_llm: called on that thread, so that loading holds up nothing else.

    max_queue: samples that may wait beside the max_num_seqs that run. step_seconds: a step that takes longer makes the
    status STUCK. on_failure: called on the loop when the thread has ended by an error.

    Made, and used, on an event loop; start() begins. The LLM that make_llm returns belongs to it until close(): a call
    of it from anywhere else raises an error that says so.
    """

    def __init__(
        self,
        make_llm: Callable[[], LLM],
        max_queue: int,
        step_seconds: float,
        on_failure: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._make_llm, self.max_queue, self._on_failure = make_llm, max_queue, on_failure
        self._step_seconds = step_seconds
        self._stage = LOADING
        self._is_closing = False
        self.latencies = Latencies()
        self.state = EngineState()
        self.streams: dict[OutputStream, None] = {}  # that have not ended, in the order in which they came
        self.num_refused = 0
        self._num_samples = 0  # of those
        self._ends: deque[float] = deque(maxlen=RECENT_ENDS)
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._llm: LLM | None = None
        self._loop = asyncio.get_running_loop()
        self._is_ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = Thread(target=self._run, name="roseinfer engine", daemon=True)
        # What follows belongs to the engine's thread.
        self._live: LiveRequests
        self._busy_since: float | None = None  # when its work began; None while it waits for some
        self._inbox = Inbox()
        self._unsent: dict[Request, tuple[OutputStream, Unsent]] = {}
        # Requests whose prompts are computed for their log-probabilities, one before each step.
        self._unscored: deque[tuple[OutputStream, Request, int]] = deque()

    # On the event loop

    async def start(self) -> None:
        """Load the model and warm it up. Raises what make_llm raises."""
        self._thread.start()
        await asyncio.shield(self._is_ready)
        if self._stage == LOADING:  # and not draining already
            self._stage = READY

    @property
    def status(self) -> str:
        """What the engine does; STUCK while a step takes longer than step_seconds."""
        since = self._busy_since
        is_late = since is not None and perf_counter() - since > self._step_seconds
        return STUCK if self._stage == READY and is_late else self._stage

    @property
    def llm(self) -> LLM:
        """The LLM. Raises ApiError while it is being loaded."""
        if self._llm is None or self._stage == LOADING:
            raise not_serving("the model is still being loaded", retry_after=5)
        return self._llm

    @property
    def most_samples(self) -> int:
        """The number of samples that may run and wait at most."""
        return self.llm.engine.config.max_num_seqs + self.max_queue

    def accept(self, num_samples: int, only_whole: bool = False) -> OutputStream:
        """Reserve places for an HTTP request of so many samples; `begin` gives the returned stream its requests.

        The stream has its places until it ends: by its last token, by abort, or by the end of the server. only_whole:
        see OutputStream. Raises ApiError where there is no place, and where the engine does not serve.
        """
        self.require_serving()
        if self._num_samples + num_samples > self.most_samples:
            running = counted(self._num_samples, "request", "runs or waits/run or wait")
            raise self.full(f"{running}, and {self.most_samples} may")
        stream = OutputStream(num_samples, only_whole)
        self.streams[stream] = None
        self._num_samples += num_samples
        return stream

    def full(self, why: str) -> ApiError:
        """Count one more refused request, and return its error."""
        self.num_refused += 1
        headers = {"Retry-After": str(self.retry_after())}
        return ApiError(f"{why}: try again later", status=429, code="queue_full", headers=headers)

    def begin(self, stream: OutputStream, requests: Sequence[Request]) -> None:
        """Let the requests of a stream, which LLM.new_request made, wait for their turn.

        A stream that has ended while they were made gets them too, since its answer is made from them, but the engine
        never sees them.
        """
        stream.requests = requests
        if stream in self.streams:
            self._commands.put(partial(self._begin, stream))

    def require_serving(self) -> None:
        """Raise ApiError unless requests are accepted now."""
        if self._stage == FAILED:
            raise not_serving("the engine has failed, and the server ends", retry_after=MOST_RETRY_AFTER)
        if self._stage == DRAINING:
            raise not_serving("the server is shutting down", retry_after=MOST_RETRY_AFTER)
        _ = self.llm

    def retry_after(self) -> int:
        """Estimate the seconds until a place becomes free, from the last streams that ended."""
        ends = self._ends
        mean_gap = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 0.0
        return min(max(1, ceil(mean_gap)), MOST_RETRY_AFTER)

    def abort(self, stream: OutputStream) -> None:
        """Take a stream's requests out of the engine before its next step. Nothing happens to one that has ended."""
        if stream in self.streams:
            self._forget(stream)
            self._commands.put(partial(self._abort, stream))

    async def drain(self, seconds: float) -> int:
        """Refuse new requests, and let the accepted ones end within so many seconds. Return how many it cut off."""
        self._stage = DRAINING if self._stage != FAILED else FAILED
        await self._until(lambda: not self.streams, seconds)
        cut_off = list(self.streams)
        for stream in cut_off:
            stream.fail(not_serving("the server is shutting down", retry_after=MOST_RETRY_AFTER))
            self.abort(stream)
        return len(cut_off)

    async def close(self, seconds: float) -> bool:
        """End what runs, and the thread with it, and return whether it has ended; its step has so many seconds to end.

        It returns False where the thread is still at work: it loads a model, or its step hangs.
        """
        self._is_closing = True
        await self.drain(0)
        self._commands.put(None)
        if not self._is_ready.done():  # loading cannot be ended
            return not self._thread.is_alive()
        await self._until(self._has_ended, seconds)
        if self._llm and not self._has_ended():
            self._llm.close()  # the step may wait for another rank, whose end raises
            await self._until(self._has_ended, seconds)
        return self._has_ended()

    def _has_ended(self) -> bool:
        return not self._thread.is_alive()

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = perf_counter() + seconds
        while not is_so() and perf_counter() < deadline:
            await asyncio.sleep(POLL_SECONDS)

    def _forget(self, stream: OutputStream) -> None:
        del self.streams[stream]
        self._num_samples -= stream.num_samples
        self._ends.append(perf_counter())

    def _deliver(self, news: News) -> None:
        for stream, what in news:
            if isinstance(what, Exception):
                stream.fail(what)
            else:
                stream.push(what)
            if stream.has_ended and stream in self.streams:
                self._forget(stream)

    def _fail_all(self, failure: BaseException) -> None:
        if self._is_closing:
            logger.debug("the engine's last step failed", exc_info=failure)
            return
        if not self._is_ready.done():
            self._is_ready.set_exception(failure)
            return
        self._stage = FAILED
        for stream in list(self.streams):
            stream.fail(not_serving("the engine has failed, and the server ends", retry_after=MOST_RETRY_AFTER))
            self._forget(stream)
        if self._on_failure:
            self._on_failure(failure)

    # On the engine's thread

    def _run(self) -> None:
        try:
            llm = self._make_llm()
            warm_up(llm)
            self._llm, self._live = llm, llm.live
            with llm, self._live.call():
                self.state = state_of(llm.engine)
                self._call_loop(self._is_ready.set_result, None)
                self._serve(llm.engine)
        except BaseException as failure:  # of loading, or a bug here: no request may hang
            self._call_loop(self._fail_all, failure)

    def _serve(self, engine: AnyEngine) -> None:
        """Step while there is work, and wait for some otherwise, until close()."""
        while self._obey(must_wait=not (engine.has_work or self._unscored)):
            self._busy_since = perf_counter()
            if self._unscored:
                stream, request, first_index = self._unscored.popleft()
                self._add(stream, [request], first_index)
                self._busy_since = perf_counter()
            if not engine.has_work:
                self.state = state_of(engine)
                continue
            failure = None
            try:
                self._live.step()
            except RankFailed:
                raise  # no step will work again
            except Exception as error:
                failure = error
            self._tell()
            if failure:
                self._fail_step(failure)
            self.state = state_of(engine)

    def _obey(self, must_wait: bool) -> bool:
        """Call what the loop has sent; must_wait: wait for at least one call. Return False once close() was called."""
        while must_wait or not self._commands.empty():
            if must_wait:
                self._busy_since = None
            command = self._commands.get()
            if command is None:
                return False
            self._busy_since = perf_counter()
            command()
            must_wait = False
        return True

    def _begin(self, stream: OutputStream) -> None:
        if stream.requests[0].num_prompt_logprobs is None:
            self._add(stream, stream.requests, 0)
            return
        first_index = 0
        for request in stream.requests:
            self._unscored.append((stream, request, first_index))
            first_index += len(request.samples)

    def _add(self, stream: OutputStream, requests: Sequence[Request], first_index: int) -> None:
        """Let the requests of a stream wait for their turn. first_index: of their first sample in the stream."""
        for request in requests:
            self._unsent[request] = stream, Unsent(request, first_index)
            first_index += len(request.samples)
        try:
            self._live.add(requests, self._inbox, stream.arrival)
        except RankFailed:
            raise
        except Exception as error:
            self._fail([stream], "the requests could not begin", error)

    def _abort(self, stream: OutputStream) -> None:
        self._unscored = deque(one for one in self._unscored if one[0] is not stream)
        self._live.end(stream.requests)
        for request in stream.requests:
            self._inbox.pop(request, None)
            if self._unsent.pop(request, None):
                self.latencies.ended(request)

    def _tell(self) -> None:
        """Hand over to the streams what the last step gave: new tokens, and the ends of requests."""
        news: News = []
        for request in self._inbox:
            self.latencies.observe(request)
            stream, unsent = self._unsent[request]
            if request.finished:
                del self._unsent[request]
            elif stream.only_whole:
                continue
            if deltas := unsent.take():
                news.append((stream, deltas))
        self._inbox.clear()
        if news:
            self._call_loop(self._deliver, news)

    def _fail_step(self, error: Exception) -> None:
        """End the requests that ran when a step raised. Those that wait go on."""
        waiting = {seq.seq_id for seq in self._live.engine.scheduler.waiting}
        running = [
            stream
            for request, (stream, _) in self._unsent.items()
            if any(one.finish_reason is None and one.seq.seq_id not in waiting for one in request.samples)
        ]
        failed = running or [stream for stream, _ in self._unsent.values()]
        self._fail([*dict.fromkeys(failed)], "a step of the engine failed", error)

    def _fail(self, streams: Sequence[OutputStream], what: str, error: Exception) -> None:
        ids = ", ".join(stream.request_id for stream in streams)
        logger.error("%s, and %s with it: %s", what, counted(len(streams), "request"), ids, exc_info=error)
        failure = ApiError(f"{what} ({type(error).__name__}: {error})"[:500], status=500, code="step_failed")
        for stream in streams:
            self._abort(stream)
        self._call_loop(self._deliver, [(stream, failure) for stream in streams])

    def _call_loop(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed, and no reader is left
            logger.debug("the event loop has ended before the engine")


def warm_up(llm: LLM) -> None:
    """Run what first requests need for the first time: both ways to choose a token."""
    for temperature in (0.0, 1.0):
        llm.generate([[0]], SamplingParams(max_tokens=2, temperature=temperature, seed=0), use_tqdm=False)
