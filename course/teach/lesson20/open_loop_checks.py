"""The checker of 20.3: when an answer sends each request, by a virtual clock, and the latencies it returns."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.wrong import Wrong
from .virtual_clock import START, VirtualLoop, run_virtually

Seconds = list[float]
Send = Callable[[int], Awaitable[None]]
OpenLoop = Callable[..., Any]


def by_tasks(waits: bool = True, from_due: bool = True, in_order: bool = True) -> OpenLoop:
    """Make an open loop with a task for each request; the defaults are right.

    waits: for the time of a request. from_due: latencies count from that time, not from the sending. in_order: of the
    requests, not of their ends.
    """

    async def loop(arrivals: Seconds, send: Send, now: Callable[[], float]) -> Seconds:
        start, latencies = now(), []

        async def one(number: int) -> float:
            if waits:
                await asyncio.sleep(start + arrivals[number] - now())
            begin = start + arrivals[number] if from_due else now()
            await send(number)
            latencies.append(now() - begin)
            return latencies[-1]

        found = await asyncio.gather(*map(one, range(len(arrivals))))
        return found if in_order else latencies

    return loop


open_loop = by_tasks()
from_the_sending, all_at_once, as_they_end = by_tasks(from_due=False), by_tasks(waits=False), by_tasks(in_order=False)


async def one_by_one(arrivals: Seconds, send: Send, now: Callable[[], float]) -> Seconds:
    start, latencies = now(), []
    for number, arrival in enumerate(arrivals):
        await asyncio.sleep(max(0.0, start + arrival - now()))
        await send(number)
        latencies.append(now() - start - arrival)
    return latencies


async def by_gaps(arrivals: Seconds, send: Send, now: Callable[[], float]) -> Seconds:
    start, tasks, before = now(), [], 0.0

    async def one(number: int) -> float:
        await send(number)
        return now() - start - arrivals[number]

    for number, arrival in enumerate(arrivals):
        await asyncio.sleep(arrival - before)
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(0)
        before = arrival
    return list(await asyncio.gather(*tasks))


def sends_and_latencies(answer: OpenLoop, arrivals: Seconds, works: Seconds, answers: Seconds) -> dict[str, Any]:
    """Run an answer by a virtual clock. "sent": when each request was sent after the start. "latencies": its result.

    works: seconds that the client itself is busy with each request when it sends it. answers: seconds that the server
    takes.
    """
    if not inspect.iscoroutinefunction(answer):
        raise Wrong("open_loop must be written with `async def`")
    sent: dict[int, float] = {}

    async def run(loop: VirtualLoop) -> Any:
        async def send(number: int) -> None:
            if number in sent:
                raise Wrong(f"request {number} is sent twice")
            sent[number] = loop.time() - START
            loop.work(works[number])
            await asyncio.sleep(answers[number])

        return await answer(arrivals, send, loop.now)

    latencies = run_virtually(run)
    if lacking := [number for number in range(len(arrivals)) if number not in sent]:
        raise Wrong(f"request {lacking[0]} is never sent")
    return {"sent": [sent[number] for number in range(len(arrivals))], "latencies": latencies}


def part(name: str, answer: OpenLoop) -> Callable[..., Any]:
    return lambda *case: sends_and_latencies(answer, *case)[name]


def _draw_load(rng: Random) -> tuple[Seconds, Seconds, Seconds]:
    """Draw a load in quarters of a second, in which answers end long after the last request is sent.

    Some loads have more requests than a client would hold back by a limit of its own.
    """
    count = rng.choice((1, 2, 3, 4, 5, 5, 40))
    is_many = count > 5
    arrivals = sorted(quarter / 4 for quarter in rng.sample(range(8 * count), count))
    works = [0.0 if is_many else rng.choice((0.0, 0.0, 0.0, 1.0, 2.5)) for _ in range(count)]
    answers = [(128.0 if is_many else 32.0) + rng.randint(0, 64) / 4 + number / 64 for number in range(count)]
    return arrivals, works, answers


LOADS = [
    ([0.0], [0.0], [1.0]),
    ([1.0], [0.0], [1.0]),
    ([0.0, 1.0], [0.0, 0.0], [3.0, 3.0]),
    ([0.0, 1.0], [2.0, 0.0], [4.0, 4.0]),
    ([0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [9.0, 1.5, 1.25]),
    ([0.5, 0.5], [0.0, 0.0], [2.0, 1.0]),
    ([number / 16 for number in range(300)], [0.0] * 300, [64.0] * 300),  # more at a time than clients have connections
    *draw(_draw_load, 60),
]
RIGHT = {name: part(name, open_loop) for name in ("sent", "latencies")}
OPEN_LOOP = Comparison(
    LOADS,
    {
        "sent": Expected(
            RIGHT["sent"],
            {
                "a request is sent at its time, whether or not earlier ones have their answers": part(
                    "sent", one_by_one
                ),
                "sleep until the next request's time, not for the gap: what the client does in between adds up": part(
                    "sent", by_gaps
                ),
                "each request waits for its time": part("sent", all_at_once),
            },
        ),
        "latencies": Expected(
            RIGHT["latencies"],
            {
                "a latency counts from the time at which the request was due: what the client is late is in it": part(
                    "latencies", from_the_sending
                ),
                "in the order of the requests, not of their ends": part("latencies", as_they_end),
            },
        ),
    },
    inputs("arrivals", "client busy", "server takes"),
    sends_and_latencies,
)
