"""load: send a plan to a server, and time every chunk that comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp

from .dialect import OPENAI, Dialect, Said
from .plan import Planned

COMPLETE, CANCELLED, REFUSED, FAILED = "complete", "cancelled", "refused", "failed"
ANSWER_SECONDS = 600  # for one answer, before it counts as failed


@dataclass(frozen=True)
class Target:
    """A server. url: such as http://127.0.0.1:8835. dialect: the one that it speaks.

    stream: whether answers are asked for chunk by chunk. keep_alive: whether a connection serves one request after
    another.
    """

    url: str
    model: str
    api_key: str | None = None
    stream: bool = True
    dialect: Dialect = OPENAI
    keep_alive: bool = True

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json"} | key


@dataclass
class Outcome:
    """What came of a request, in seconds after the start of the load.

    arrival: by the plan; in a closed loop, when its turn came. sent: when it was sent, which is later than arrival only
    where the client itself is late. chunks: when each part of the answer came. num_tokens: as the server counts them.
    status: of HTTP, None without an answer. how: COMPLETE, CANCELLED, REFUSED (4xx) or FAILED.
    """

    arrival: float
    sent: float
    chunks: list[float] = field(default_factory=list)
    ended: float = 0.0
    num_tokens: int = 0
    text: str = ""
    status: int | None = None
    how: str = FAILED
    error: str | None = None


async def ask_models(url: str, api_key: str | None) -> dict[str, Any]:
    """Return the first model that a server lists in /v1/models. Raises ValueError where it lists none."""
    target = Target(url, "", api_key)
    try:
        async with aiohttp.ClientSession(headers=target.headers) as client, client.get(f"{url}/v1/models") as answer:
            found = await answer.json()
            if answer.status == 200 and found.get("data"):
                return found["data"][0]
            raise ValueError(f"{url}/v1/models answers {answer.status}: {str(found)[:200]}")
    except (aiohttp.ClientError, json.JSONDecodeError, OSError) as error:
        raise ValueError(f"{url}: no server with OpenAI's API answers there ({error})") from error


async def load(
    target: Target,
    plan: Sequence[Planned],
    on_end: Callable[[Outcome], object] = lambda _: None,
    clients: int | None = None,
) -> list[Outcome]:
    """Send each request at its time, and wait for all answers; return outcomes in the order of the plan.

    clients: None for an open loop. A number is a closed loop of so many clients, each of which sends its next request
    when its last one has ended; the plan's times do not count then. on_end: called after each answer.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=not target.keep_alive)
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers) as client:
        start = perf_counter()

        async def run(planned: Planned, arrival: float) -> Outcome:
            outcome = await _one(client, target, planned, arrival, start)
            on_end(outcome)
            return outcome

        if clients is not None:
            return await _closed_loop(plan, clients, lambda planned: run(planned, perf_counter() - start))
        tasks = []
        for planned in plan:
            await asyncio.sleep(max(0.0, planned.seconds - (perf_counter() - start)))
            tasks.append(asyncio.ensure_future(run(planned, planned.seconds)))
        return list(await asyncio.gather(*tasks))


async def _closed_loop(
    plan: Sequence[Planned], clients: int, run: Callable[[Planned], Coroutine[Any, Any, Outcome]]
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    numbered = iter(enumerate(plan))

    async def one_client() -> None:
        for number, planned in numbered:  # the clients share it
            outcomes[number] = await run(planned)

    await asyncio.gather(*(one_client() for _ in range(clients)))
    return [outcomes[number] for number in range(len(plan))]


async def _one(
    client: aiohttp.ClientSession, target: Target, planned: Planned, arrival: float, start: float
) -> Outcome:
    outcome = Outcome(arrival, perf_counter() - start)
    try:
        await asyncio.wait_for(_exchange(client, target, planned, outcome, start), planned.gone_after)
    except asyncio.TimeoutError:
        outcome.how = FAILED if planned.gone_after is None else CANCELLED
        outcome.error = None if planned.gone_after is not None else "no answer in time"
    except (aiohttp.ClientError, OSError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.ended = perf_counter() - start
    return outcome


async def _exchange(
    client: aiohttp.ClientSession, target: Target, planned: Planned, outcome: Outcome, start: float
) -> None:
    dialect = target.dialect
    body = dialect.encoded(target.model, planned, target.stream)
    async with client.post(f"{target.url}{dialect.path}", data=body) as answer:
        outcome.status = answer.status
        if answer.status != 200:
            outcome.how = REFUSED if 400 <= answer.status < 500 else FAILED
            outcome.error = (await answer.text())[:200]
        elif target.stream:
            await _read_stream(answer, dialect, outcome, start)
        else:
            _take(dialect.read(json.loads(await answer.read())), outcome)
            outcome.how = COMPLETE


async def _read_stream(answer: aiohttp.ClientResponse, dialect: Dialect, outcome: Outcome, start: float) -> None:
    """Read a streamed answer: note the times first, and parse at the end, so that parsing delays no other chunks."""
    parts: list[tuple[float, bytes]] = []
    rest = b""
    async for data in answer.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        now = perf_counter() - start
        parts += [(now, event) for event in events]
    for at, event in parts:
        text = event.removeprefix(b"data: ")
        if text == b"[DONE]":
            outcome.how = COMPLETE
        elif text:
            said = dialect.read(json.loads(text))
            _take(said, outcome)
            if said.is_part:
                outcome.chunks.append(at)
            if said.is_last:
                outcome.how = COMPLETE


def _take(said: Said, outcome: Outcome) -> None:
    outcome.error = said.error or outcome.error
    outcome.text += said.text
    if said.num_tokens is not None:
        outcome.num_tokens = said.num_tokens
