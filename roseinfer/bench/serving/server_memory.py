"""watched: the resident memory of a server while it is loaded, as its /metrics tells it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeVar

import aiohttp

T = TypeVar("T")
Sample = tuple[float, int]  # seconds after the start, bytes
EVERY_SECONDS = 1.0
RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)


async def watched(url: str, load: Coroutine[Any, Any, T]) -> tuple[T, list[Sample]]:
    """Await a load; sample the server's memory before, every second, and after, if the server tells its memory."""
    samples: list[Sample] = []
    start = perf_counter()
    async with aiohttp.ClientSession() as client:

        async def sample() -> None:
            if (resident := await resident_bytes(client, url)) is not None:
                samples.append((perf_counter() - start, resident))

        async def sample_on() -> None:
            while True:
                await asyncio.sleep(EVERY_SECONDS)
                await sample()

        await sample()
        watching = asyncio.ensure_future(sample_on())
        try:
            result = await load
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        await sample()
    return result, samples


async def resident_bytes(client: aiohttp.ClientSession, url: str) -> int | None:
    """Read a server's resident bytes from its /metrics; None where it does not tell them."""
    try:
        async with client.get(f"{url}/metrics") as answer:
            found = RESIDENT.search(await answer.text())
    except (aiohttp.ClientError, OSError):
        return None
    return int(float(found[1])) if found else None
