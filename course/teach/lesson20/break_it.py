"""break_server: slow clients, clients that leave, bad requests, a full queue, and the blocks that are free after."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from roseinfer.display.table import Table

from ..measure.progress_bar import progress_bar
from ..views.rows_table import table
from .server import LessonServer
from .streaming import posted, read_all, streamed, text_of

LONG, SHORT = 256, 16  # tokens
Trial = Callable[[LessonServer], str]


def break_server(server: LessonServer) -> Table:
    """Try each of TRIALS, and report what clients saw, the blocks free when nothing runs, and how long it took."""
    rows: list[dict[str, Any]] = []
    with progress_bar("trials", len(TRIALS)) as done:
        for name, trial in TRIALS.items():
            began = perf_counter()
            seen = trial(server)
            state = server.wait_until_idle()
            free = "all" if state["free_blocks"] == state["blocks"] else f"{state['free_blocks']} of {state['blocks']}"
            rows.append({"what happens": name, "seen": seen, "blocks free after": free})
            rows[-1]["ms until idle"] = 1e3 * (perf_counter() - began)
            done()
    return table(rows, ["ms until idle"], formats={"ms until idle": "{:,.0f}"})


def slow_client(server: LessonServer) -> str:
    """Let one client read nothing while another one gets its whole answer; then the first reads."""
    with posted(server, streamed(server, LONG)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        status, other, _ = server.post("/v1/completions", streamed(server, SHORT) | {"stream": False})
        slow_text = text_of(read_all(slow))
    _, whole, _ = server.post("/v1/completions", streamed(server, LONG) | {"stream": False})
    is_whole = slow_text == whole["choices"][0]["text"]
    told = f"the other one: {status}, {other['usage']['completion_tokens']} tokens"
    return f"{told}; the slow one: {'its whole answer' if is_whole else 'another answer'}"


def client_leaves(server: LessonServer) -> str:
    """Close a client's connection after the first bytes of a stream."""
    with posted(server, streamed(server, LONG)) as connection:
        connection.recv(1)
        server.wait_for(lambda state: state["running"] == 1)
    state = server.wait_until_idle()
    return f"{state['running']} running, {state['waiting']} waiting"


def client_leaves_the_queue(server: LessonServer) -> str:
    """Close the connection of a client whose request still waits, as all slots are taken."""
    with ExitStack() as stack:
        for _ in range(server.max_num_seqs):
            stack.enter_context(posted(server, streamed(server, LONG)))
        server.wait_for(lambda state: state["running"] == server.max_num_seqs)
        with posted(server, streamed(server, LONG)):
            server.wait_for(lambda state: state["waiting"] == 1)
        state = server.wait_for(lambda state: state["waiting"] == 0)
    return f"{state['waiting']} waiting"


def misspelt_field(server: LessonServer) -> str:
    """Send a field's name with a wrong letter."""
    status, found, _ = server.post("/v1/completions", {"prompt": "Return", "max_tokns": 4})
    return f"{status}: {found['error']['param']}"


def full_queue(server: LessonServer) -> str:
    """Send one request more than may run and wait."""
    with ExitStack() as stack:
        for _ in range(server.max_num_seqs + server.max_queue):
            stack.enter_context(posted(server, streamed(server, LONG)))
        server.wait_for(lambda state: state["num_requests"] == server.max_num_seqs + server.max_queue)
        status, _, headers = server.post("/v1/completions", streamed(server, SHORT))
    return f"{status}, with Retry-After: {'yes' if int(headers['retry-after']) >= 1 else 'no'}"


TRIALS: dict[str, Trial] = {
    "a client reads nothing for a while": slow_client,
    "a client leaves in the middle of its answer": client_leaves,
    "a client leaves while its request waits": client_leaves_the_queue,
    "a field is misspelt": misspelt_field,
    "the queue is full": full_queue,
}
