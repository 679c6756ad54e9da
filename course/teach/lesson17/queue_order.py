"""order_queue: the slots that a queue fills in the order of each policy, and in the reader's own.

Each request takes the slot that is free first, holds it for a step per token, and leaves it empty for one step, as in
stage 16: the next step is planned before a request is seen to end. A wait ends when a request is scheduled, a step
before the first one that computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.arguments import each_once, require_count

MOST_REQUESTS = 16
YOURS = "yours"
Order = list[int]
Stay = tuple[int, int, int]  # slot, first step, steps


def order_queue(outputs: Sequence[int], slots: int, order: Sequence[int] = ()) -> Board:
    """Draw requests of that many output tokens, all queued at the start, of which `slots` run at a time.

    Args:
        outputs: tokens of each request, of 1 to 16 requests.
        slots: how many requests run at a time.
        order: numbers of requests in the order in which they should join; the others follow in the order of arrival.
            With none, there are only the orders of the policies.

    Raises ValueError for another number of requests, for lengths or slots below 1, and for an order that names a
    request twice, or one that is not there.
    """
    if not 1 <= len(outputs) <= MOST_REQUESTS:
        raise ValueError(f"outputs must be of 1 to {MOST_REQUESTS} requests, got {len(outputs)}")
    for length in outputs:
        require_count("outputs", length, 1)
    require_count("slots", slots, 1)
    orders = presets(outputs)
    facts = {name: told(*run([outputs[i] for i in own], slots)) for name, own in orders.items()}
    text = f"{len(outputs)} requests, {slots} at a time. {'; '.join(f'{name}: {fact}' for name, fact in facts.items())}"
    if order:
        orders = {YOURS: completed(order, len(outputs)), **orders}
    frames = {name: [_frame(name, own, outputs, slots)] for name, own in orders.items()}
    return Board(frames, text, choice_label="order")


def presets(outputs: Sequence[int]) -> dict[str, Order]:
    """List the requests' numbers in the order of each policy; equal requests keep the order of arrival."""
    arrival = range(len(outputs))
    return {
        "first come": list(arrival),
        "shortest output first": sorted(arrival, key=lambda i: outputs[i]),
        "longest output first": sorted(arrival, key=lambda i: -outputs[i]),
    }


def completed(order: Sequence[int], num_requests: int) -> Order:
    """Add the requests that an order leaves out, as they came."""
    for request in each_once("order", order):
        require_count("order", request, 0, num_requests - 1)
    return [*order, *(i for i in range(num_requests) if i not in order)]


def stays(outputs: Sequence[int], slots: int) -> list[Stay]:
    """Give each request, in the order given, the slot that is free first."""
    free, found = [0] * slots, []
    for length in outputs:
        start = min(free)
        slot = free.index(start)
        found.append((slot, start, length))
        free[slot] = start + length + 1
    return found


def run(outputs: Sequence[int], slots: int) -> tuple[int, int]:
    """Count the steps of a run in the order given, and the steps that all requests wait together."""
    found = stays(outputs, slots)
    return max(start + length for _, start, length in found), sum(max(start - 1, 0) for _, start, _ in found)


def told(steps: int, waited: int) -> str:
    return f"{steps} steps, {waited} steps of waiting"


def _frame(name: str, order: Order, outputs: Sequence[int], slots: int) -> Frame:
    lengths = [outputs[i] for i in order]
    starts = accumulate(lengths, initial=0)
    queue = [
        Cell(row, start, text, request, width=outputs[request])
        for request, start in zip(order, starts, strict=False)
        for row, text in enumerate((request, outputs[request]))
    ]
    placed = zip(order, stays(lengths, slots), strict=True)
    lanes = [Cell(slot, start, request, request, width=length) for request, (slot, start, length) in placed]
    labels = [f"slot {slot + 1}" for slot in range(slots)]
    return Frame(
        [
            Panel(queue, "The queue in this order", ("request", "tokens"), cell=(12, 24)),
            Panel(lanes, "A gap is one empty step", labels, unit="steps", cell=(24, 26)),
        ],
        f"{name}: {told(*run(lengths, slots))}",
        "A request is one step wide per token. The waiting of all requests is added up.",
    )
