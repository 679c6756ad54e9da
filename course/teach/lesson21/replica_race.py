"""race_replicas: the same requests for one server, and for several that share the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import torch

from roseinfer.bench.serving.client import COMPLETE, Target, load
from roseinfer.bench.serving.plan import Planned
from roseinfer.display.table import Table

from ..lesson20.loads import drawn_plan
from ..lesson20.served import tokens_per_second
from ..lesson20.server import LessonServer, in_a_thread
from ..measure.progress_bar import progress_bar
from ..views.rows_table import table

COUNT, CLIENTS, SLOTS = 48, 16, 8


def race_replicas(model: str = "tiny", sizes: Sequence[int] = (1, 2)) -> Table:
    """Answer the same requests by each number of replicas, which get them in turn and share the threads of PyTorch."""
    rows: list[dict[str, Any]] = []
    wanted = None
    with progress_bar("replicas", 2 * len(sizes)) as done:
        for size in sizes:
            environment = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // size))}
            with ExitStack() as stack, ThreadPoolExecutor(size) as starting:
                begun = [starting.submit(LessonServer, model, SLOTS, COUNT, environment) for _ in range(size)]
                servers = [stack.enter_context(closing(one.result())) for one in begun]
                done()
                texts, speed = in_a_thread(in_turn(servers, drawn_plan(servers[0], COUNT)))
            wanted = wanted or texts
            rows.append({"replicas": size, "requests of each": COUNT // size})
            rows[-1] |= {"texts": "equal" if texts == wanted else "different", "tok/s": speed}
            done()
    note = f"{CLIENTS} clients, each with its next request when its last answer has ended; {SLOTS} slots a replica"
    return table(rows, ["tok/s"], note=note, formats={"tok/s": "{:,.0f}"})


async def in_turn(servers: Sequence[LessonServer], plan: Sequence[Planned]) -> tuple[list[str], float]:
    """Send requests to servers in turn; return the texts in the order of the plan, and the tokens per second."""
    size = len(servers)
    loads = [
        load(Target(server.url, server.model), plan[number::size], clients=CLIENTS // size)
        for number, server in enumerate(servers)
    ]
    parts = await asyncio.gather(*loads)
    outcomes = [parts[number % size][number // size] for number in range(len(plan))]
    if failed := [one for one in outcomes if one.how != COMPLETE]:
        raise RuntimeError(f"{len(failed)} of {len(plan)} requests did not complete: {failed[0].error}")
    return [one.text for one in outcomes], tokens_per_second(outcomes)
