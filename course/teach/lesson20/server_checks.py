"""What a learner's server is worth, for 20.1: clients that come, read and leave, beside an engine that names faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from time import monotonic
from typing import Any

from roseinfer.sequence import SamplingParams, Sequence

from ..exercises.wrong import Failed, Wrong

SECONDS = 2.0  # until what should take a millisecond is given up
LONG = 10_000  # tokens, of answers whose clients leave
IDLE_SECONDS, MOST_LOOKS = 0.03, 200

BLOCKED = "the event loop is blocked: no other client can be served meanwhile. On the loop, wait with `await` alone"
ON_THE_LOOP = "a call of the engine on the event loop's thread holds up every client: call it in `run` alone"
LATE = "a client did not get its token while the answer went on: hand it to this client after its step"
ONE_BY_ONE = "a request begins only when the one before has ended: let it in between two steps"
NEVER_ENDS = f"a client has waited {2 * SECONDS:g} s for its tokens, or for the end of its stream"
MIXED = "a client got another client's tokens: each needs a queue of its own"
LOST = "tokens were lost: a step may have several new ones of a sequence"
OTHER_ORDER = "tokens come twice, or in another order"
NO_ABORT = "a client has left, and the engine writes on for it: abort its sequence, also when it is cancelled"
HAS_ENDED = "engine.abort of a sequence that has ended: its client left with the last token"
NO_WORK = "engine.step without work: wait for a request first"
SPINS = "without work, the thread asks again and again, which takes a whole core: wait for the next request"


class Request(Sequence):
    """A client's sequence. is_read: set by each token that the client reads. pause: seconds after each token."""

    def __init__(self, number: int, num_tokens: int, pause: float = 0.0) -> None:
        super().__init__([number], SamplingParams(max_tokens=num_tokens))
        self.is_read, self.has_left, self.pause = threading.Event(), False, pause

    def __repr__(self) -> str:
        return f"the sequence of client {self.token_ids[0]}"


class Outcome:
    """What a check finds first, from whichever thread. error: None where all is right."""

    def __init__(self) -> None:
        self.is_over, self.lock = threading.Event(), threading.Lock()
        self.error: Exception | None = Wrong(BLOCKED)

    def end(self, error: Exception | None) -> None:
        with self.lock:
            if not self.is_over.is_set():
                self.error = error
                self.is_over.set()


class CarefulEngine:
    """Stands for an engine: writes known tokens, and names what is done wrong with it.

    Made on the event loop, which must answer while a step runs. When the check is over, a call ends its thread.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.loop, self.loop_thread, self.outcome = asyncio.get_running_loop(), threading.get_ident(), outcome
        self.running: list[Request] = []
        self.num_steps = self.num_looks = self.most_running = 0

    def require(self, is_so: bool, wrong: str) -> None:
        """End the check for a fault, and the thread that made it."""
        if not is_so:
            self.outcome.end(Wrong(wrong))
        if self.outcome.is_over.is_set():
            raise SystemExit

    def called(self) -> None:
        self.require(threading.get_ident() != self.loop_thread, ON_THE_LOOP)

    @property
    def has_work(self) -> bool:
        self.require(True, "")
        self.num_looks += 1
        return bool(self.running)

    def add(self, seq: Request) -> None:
        self.called()
        self.running.append(seq)

    def abort(self, seq: Request) -> None:
        self.called()
        self.require(seq in self.running, HAS_ENDED)
        seq.finish_reason = "abort"
        self.running.remove(seq)

    def step(self) -> list[Request]:
        self.called()
        self.require(bool(self.running), NO_WORK)
        pulse = threading.Event()
        self.loop.call_soon_threadsafe(pulse.set)
        self.require(pulse.wait(SECONDS), BLOCKED)
        self.num_steps += 1
        self.most_running = max(self.most_running, len(self.running))
        seqs = list(self.running)
        for seq in seqs:
            # A client that has not left has read something of the step before.
            self.require(not seq.output_ids or seq.has_left or seq.is_read.wait(SECONDS), LATE)
            seq.is_read.clear()
            for _ in range(1 + (self.num_steps % 3 == 0)):  # several tokens in a step, as with drafts
                if len(seq) < seq.max_len:
                    seq.append(written(seq)[len(seq.output_ids)])
            if len(seq) == seq.max_len:
                seq.finish_reason = "length"
                self.running.remove(seq)
        return seqs


def written(seq: Request) -> range:
    """Return the tokens that the engine writes for a sequence."""
    return range(LONG * seq.token_ids[0], LONG * seq.token_ids[0] + seq.params.most_tokens)


class Scene:
    """Clients of one server, on its event loop."""

    def __init__(self, answer: type[Any], outcome: Outcome) -> None:
        self.engine = CarefulEngine(outcome)
        self.server = answer(self.engine)

    async def play(self) -> None:
        """Raise Wrong for the first thing that goes wrong."""
        # 1. Three clients at a time, of which one reads slowly; then one that comes when nothing is left to do.
        together = [Request(number, 6 + 3 * number, pause) for number, pause in ((1, 0.003), (2, 0.0), (3, 0.0))]
        await asyncio.gather(*map(self.read, together))
        require(self.engine.most_running > 1, ONE_BY_ONE)
        await self.rest()
        await self.read(Request(4, 5))
        # 2. Clients that leave, each while another one reads: by closing the generator, and by being cancelled.
        for number, leave in ((10, partial(self.read, most=2)), (20, self.cancel)):
            left, stays = Request(number, LONG), Request(number + 1, 12)
            await asyncio.gather(leave(left), self.read(stays))
            await self.until(partial(getattr, left, "finish_reason"))
            require(left.finish_reason == "abort", NO_ABORT)
        # 3. A client that leaves with its last token, and one after it.
        await self.read(Request(30, 3), most=3)
        await self.read(Request(31, 3))
        await self.rest()

    async def read(self, seq: Request, most: int | None = None) -> None:
        """Read a stream, to its end or until it has given `most` tokens, and compare what it gave."""
        got, want = list[int](), list(written(seq)[:most])
        try:
            await asyncio.wait_for(self.collect(seq, got, most), 2 * SECONDS)  # longer than the engine waits
        except asyncio.TimeoutError:
            raise Wrong(NEVER_ENDS) from None
        require(len(set(got)) == len(want), LOST)
        require(got == want, OTHER_ORDER)

    async def collect(self, seq: Request, got: list[int], most: int | None) -> None:
        stream = self.server.tokens(seq)
        if asyncio.iscoroutine(stream):
            stream.close()
        if not hasattr(stream, "aclose"):
            raise Wrong("tokens must be an async generator: `async def`, with `yield` for each token")
        try:
            async with aclosing(stream):
                async for token in stream:
                    require(token in written(seq), MIXED)
                    got.append(token)
                    seq.is_read.set()
                    if len(got) == most:
                        return
                    if seq.pause:
                        await asyncio.sleep(seq.pause)
        finally:
            seq.has_left = True
            seq.is_read.set()

    async def cancel(self, seq: Request) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.collect(seq, [], None), IDLE_SECONDS)

    async def until(self, is_so: Callable[[], Any]) -> None:
        deadline = monotonic() + SECONDS
        while not is_so() and monotonic() < deadline:
            await asyncio.sleep(0.001)

    async def rest(self) -> None:
        await self.until(lambda: not self.engine.running)
        before = self.engine.num_looks
        await asyncio.sleep(IDLE_SECONDS)
        require(self.engine.num_looks - before < MOST_LOOKS, SPINS)


def require_server(answer: Any) -> None:
    """Raise Wrong unless a class is a server as exercise 20.1 asks for it; Failed for an error of its own thread."""
    if not isinstance(answer, type):
        raise Wrong(f"expected a class, got {answer!r}")
    outcome = Outcome()

    async def play() -> None:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = SECONDS
        loop.set_exception_handler(lambda *_: None)  # of what is left when the check has ended
        try:
            await Scene(answer, outcome).play()
            outcome.end(None)
        except Exception as error:
            outcome.end(error)
        await asyncio.sleep(IDLE_SECONDS)  # until the engine has ended the thread

    def hook(raised: threading.ExceptHookArgs) -> None:
        if raised.thread in older:
            before(raised)
        elif isinstance(raised.exc_value, Exception):
            outcome.end(Failed("the thread has ended", raised.exc_value))

    older, before = threading.enumerate(), threading.excepthook
    threading.excepthook = hook
    try:
        # In debug mode, a call of the loop from another thread raises.
        threading.Thread(target=lambda: asyncio.run(play(), debug=True), daemon=True).start()
        outcome.is_over.wait(4 * SECONDS)
    finally:
        threading.excepthook = before
    if outcome.error:
        raise outcome.error


def require(is_so: bool, wrong: str) -> None:
    if not is_so:
        raise Wrong(wrong)
