"""record_contest: one run of a contest's requests in this process, step by step, as the lesson's pictures need it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from course.contest.entry import make_engine
from course.contest.places import PLACES, run_in_places
from course.contest.workload import Request, Workload, workload_of
from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.stage import Stage

SLOTS = PLACES
SEED = 4  # of the requests that the lesson looks at: the contest draws new ones


@dataclass(frozen=True)
class Stay:
    """A request's stay in a slot, in the steps from `first` to `last`, both included."""

    request: int
    slot: int
    first: int
    last: int


@dataclass(frozen=True)
class ContestRun:
    """A run of a contest. made[i]: the new tokens of each request in step i, by its number. seconds: of each step."""

    requests: list[Request]
    made: list[dict[int, int]]
    seconds: list[float]

    @property
    def num_steps(self) -> int:
        return len(self.made)

    @property
    def num_empty(self) -> int:
        """Slots without a request, added up over all steps."""
        return sum(SLOTS - len(step) for step in self.made)

    def stays(self) -> list[Stay]:
        """Find where each request ran: it takes the first free slot with its first token, until its last one."""
        steps: dict[int, list[int]] = {}
        for number, step in enumerate(self.made):
            for request in step:
                steps.setdefault(request, []).append(number)
        free_from, stays = [0] * SLOTS, []
        for request, own in sorted(steps.items(), key=lambda item: item[1][0]):
            slot = next(s for s in range(SLOTS) if free_from[s] <= own[0])
            free_from[slot] = own[-1] + 1
            stays.append(Stay(request, slot, own[0], own[-1]))
        return stays


def record_contest(
    entry: type | None, model: Model, workload: Workload | str = "mixed", seed: int = SEED
) -> ContestRun:
    """Run the requests of that seed as the entry does; None for the baseline.

    Raises ValueError for a class that is no entry, and for an unknown workload.
    """
    workload = workload_of(workload) if isinstance(workload, str) else workload
    made, requests = make_engine(entry, model), workload.draw(seed)
    run_once(made, workload.draw(seed + 1))  # the first run makes what later ones find
    return run_once(made, requests)


def run_once(made: Engine | Stage, requests: list[Request]) -> ContestRun:
    grown, seconds = [], []
    had, began = [0] * len(requests), perf_counter()
    lengths = [(len(one.prompt), one.max_tokens) for one in requests]
    for running in run_in_places(made, lengths, lambda ended, begun: [requests[number].prompt for number in begun]):
        now = perf_counter()
        has = {number: len(seq.output_ids) for number, seq in sorted(running.items())}
        grown.append({number: count - had[number] for number, count in has.items() if count > had[number]})
        seconds.append(now - began)
        for number, count in has.items():
            had[number] = count
        began = perf_counter()
    return ContestRun(requests, grown, seconds)
