"""The end of a request, in a scheduler as small as can be: what happens when the server's abort names nobody.

The rule: the server sees in a step's tokens which requests have all they asked for, and asks the scheduler to abort
them. An aborted request leaves before the next step. One that nobody aborted runs on, and leaves when it has more
tokens than it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

from roseinfer.blocks import BlockTables


@dataclass
class Request:
    """wanted: tokens asked for. made: tokens it has, one a step."""

    request_id: int
    wanted: int
    made: int = 0
    aborted: bool = False


class Scheduler:
    """Runs all requests at once. Blocks for their tokens come from `tables`, and go back when they leave if `frees`."""

    def __init__(self, wanted: List[int], tables: BlockTables, frees: bool = True) -> None:
        self.requests = [Request(i, n) for i, n in enumerate(wanted)]
        self.running = list(self.requests)
        self.tables = tables
        self.frees = frees

    def step(self) -> set[int]:
        """One more token for every running request; the ids of those that now have all they asked for."""
        for request in self.running:
            request.made += 1
        self.tables.reserve({request.request_id: request.made for request in self.running})
        return {request.request_id for request in self.running if request.made == request.wanted}

    def abort_request(self, request_id: int) -> None:
        for request in self.running:
            if request.request_id == request_id:
                request.aborted = True

    def retire(self) -> None:
        """Let those leave that were aborted or have more tokens than they asked for."""
        for request in list(self.running):
            if request.aborted or request.made > request.wanted:
                self.running.remove(request)
                if self.frees:
                    self.tables.free(request.request_id)


Abort = Callable[[Scheduler, "set[int]"], None]


def abort_the_set(scheduler: Scheduler, request_ids: set[int]) -> None:
    """The bug: one call with the whole set, and no id equals a set."""
    scheduler.abort_request(request_ids)  # type: ignore[arg-type]


def abort_each(scheduler: Scheduler, request_ids: set[int]) -> None:
    for request_id in request_ids:
        scheduler.abort_request(request_id)


def run_out(scheduler: Scheduler, abort: Abort) -> list[int]:
    """Run until nobody is left. Steps that each request took part in, in order of their ids."""
    while scheduler.running:
        abort(scheduler, scheduler.step())
        scheduler.retire()
    return [request.made for request in scheduler.requests]
