"""order_queue: a queue that a reader orders by clicks, the slots that it fills, and what the policies reach.

The page computes the run itself. Each request takes the slot that is free first, holds it for a step per token, and
leaves it empty for one step, as in stage 16: the next step is planned before a request is seen to end. A wait ends when
a request is scheduled, a step before the first one that computes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

from course.display.computed_picture import ComputedPicture, Spec, mark, quoted, write
from course.display.shapes import EDGE, WIDTH
from roseinfer.arguments import require_count
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE

MOST_REQUESTS = 16
ROW, GAP = 26, 4
QUEUE_TOP, BUTTONS_TOP, BUTTON_WIDTH = 44, 104, 150
LANES_TOP, LEFT = 190, 60
INSTRUCTIONS = (
    "Click the requests in the order in which they should join; another click takes a request out of the order again.",
    "Each box is one step wide per token. Requests that are not clicked follow as they came. A gap is one empty step.",
)
Order = list[int]


def order_queue(outputs: Sequence[int], slots: int) -> ComputedPicture:
    """Draw requests of that many output tokens, all queued at the start, of which `slots` run at a time.

    In the page, clicks on requests put them in order; those that are left follow in the order of arrival. Raises
    ValueError for no request or more than 16, for a length below 1, and for slots below 1.
    """
    if not 1 <= len(outputs) <= MOST_REQUESTS:
        raise ValueError(f"outputs must be of 1 to {MOST_REQUESTS} requests, got {len(outputs)}")
    for length in outputs:
        require_count("outputs", length, 1)
    require_count("slots", slots, 1)
    orders = presets(outputs)
    facts = [f"{name}: {told(*run([outputs[i] for i in order], slots))}" for name, order in orders.items()]
    text = f"{len(outputs)} requests, {slots} at a time. {'; '.join(facts)}"
    longest = orders["longest output first"]
    return ComputedPicture(
        text,
        LANES_TOP + slots * (ROW + GAP) + 44,
        [*_ranks(orders, len(outputs)), *_places(outputs, slots)],
        _marks(orders, facts, slots),
        [_queue(outputs), _lanes(outputs)],
        [
            {"name": "steps", "domain": [0, sum(outputs) + len(outputs)], "range": [LEFT, WIDTH]},
        ],
        still={f"r{i}": longest.index(i) + 1 for i in range(len(outputs))},
    )


def presets(outputs: Sequence[int]) -> dict[str, Order]:
    """List the requests' numbers in the order of each policy; equal requests keep the order of arrival."""
    arrival = range(len(outputs))
    return {
        "first come": list(arrival),
        "shortest output first": sorted(arrival, key=lambda i: outputs[i]),
        "longest output first": sorted(arrival, key=lambda i: -outputs[i]),
    }


def run(outputs: Sequence[int], slots: int) -> tuple[int, int]:
    """Count the steps of a run in the order given, and the steps that all requests wait together."""
    free, waited = [0] * slots, 0
    for length in outputs:
        start = min(free)
        waited += max(start - 1, 0)
        free[free.index(start)] = start + length + 1
    return max(free) - 1, waited


def told(steps: int, waited: int) -> str:
    return f"{steps} steps, {waited} steps of waiting"


def _ranks(orders: dict[str, Order], num: int) -> list[Spec]:
    """Declare r0, r1, ...: the place in the order that clicks gave to each request, from 1; 0 for none."""
    ranks: list[Spec] = []
    for i in range(num):
        move_up = f"datum.rank > 0 && r{i} > datum.rank ? r{i} - 1 : r{i}"
        chosen = f"datum.i != {i} ? {move_up} : r{i} == 0 ? num + 1 : 0"
        handlers = [{"events": "@request:click", "update": chosen}, {"events": "@order_0:click", "update": "0"}]
        handlers += [
            {"events": f"@order_{n}:click", "update": str(order.index(i) + 1)}
            for n, order in enumerate(list(orders.values())[1:], 1)
        ]
        ranks.append({"name": f"r{i}", "value": 0, "on": handlers})
    return [*ranks, {"name": "num", "update": f"max({', '.join(f'r{i}' for i in range(num))}, 0)"}]


def _places(outputs: Sequence[int], slots: int) -> list[Spec]:
    """Compute which request is at each place of the queue, its first step and its slot, each from the place before."""
    num = len(outputs)
    signals: dict[str, str] = {}
    for i in range(num):  # those without a rank follow, in the order of arrival
        before = " + ".join(["num", "1", *(f"(r{j} == 0 ? 1 : 0)" for j in range(i))])
        signals[f"p{i}"] = f"r{i} > 0 ? r{i} : {before}"
    signals["places"] = f"[{', '.join(f'p{i}' for i in range(num))}]"
    signals["free0"] = json.dumps([0] * slots)
    for k in range(num):
        signals[f"at{k}"] = f"indexof(places, {k + 1})"
        signals[f"start{k}"] = f"extent(free{k})[0]"
        signals[f"slot{k}"] = f"indexof(free{k}, start{k})"
        end = f"start{k} + {json.dumps(list(outputs))}[at{k}] + 1"
        now_free = (f"slot{k} == {s} ? {end} : free{k}[{s}]" for s in range(slots))
        signals[f"free{k + 1}"] = f"[{', '.join(now_free)}]"
    signals["steps"] = f"extent(free{num})[1] - 1"
    signals["waited"] = " + ".join(f"max(start{k} - 1, 0)" for k in range(num))
    for name in ("at", "start", "slot"):
        signals[f"{name}s"] = f"[{', '.join(f'{name}{k}' for k in range(num))}]"
    return [{"name": name, "update": update} for name, update in signals.items()]


def _queue(outputs: Sequence[int]) -> Spec:
    ends = list(accumulate(length + 1 for length in outputs))
    rows = [{"i": i, "length": n, "x": end - n - 1} for i, (n, end) in enumerate(zip(outputs, ends, strict=True))]
    ranks = f"[{', '.join(f'r{i}' for i in range(len(outputs)))}][datum.i]"
    return {"name": "queue", "values": rows, "transform": [{"type": "formula", "as": "rank", "expr": ranks}]}


def _lanes(outputs: Sequence[int]) -> Spec:
    formulas = {
        "start": "starts[datum.k]",
        "slot": "slots[datum.k]",
        "length": f"{json.dumps(list(outputs))}[ats[datum.k]]",
        "rank": f"[{', '.join(f'r{i}' for i in range(len(outputs)))}][ats[datum.k]]",
    }
    transform = [{"type": "formula", "as": name, "expr": expr} for name, expr in formulas.items()]
    return {"name": "lanes", "values": [{"k": k} for k in range(len(outputs))], "transform": transform}


def _marks(orders: dict[str, Order], facts: Sequence[str], slots: int) -> list[Spec]:
    x, span = "scale('steps', datum.x)", "scale('steps', datum.x + datum.length) - scale('steps', datum.x)"
    time, lane = "scale('steps', datum.start)", f"{LANES_TOP} + datum.slot * {ROW + GAP}"
    end, lanes_end = "scale('steps', steps)", LANES_TOP + slots * (ROW + GAP)
    pointer = {"cursor": quoted("pointer")}
    marks = [
        *(write(quoted(line), 0, 14 + 18 * n) for n, line in enumerate(INSTRUCTIONS)),
        write(quoted("queue"), 0, QUEUE_TOP + 18),
        mark(
            "rect", "queue", "request", x=x, y=QUEUE_TOP, width=span, height=ROW, fill=quoted(PALETTE[0]),
            fillOpacity="datum.rank > 0 ? 0.75 : 0.2", stroke=quoted(EDGE), **pointer,
        ),
        write("datum.length", f"{x} + 3", QUEUE_TOP + 18, "queue"),
        write(
            "datum.rank > 0 ? format(datum.rank, 'd') + '.' : ''", f"{x} + 1", QUEUE_TOP + ROW + 13, "queue",
            fontSize=10.5,
        ),
        *_buttons(orders, facts),
        write(
            "'this order: ' + format(steps, 'd') + ' steps, ' + format(waited, 'd') + ' steps of waiting'",
            WIDTH, BUTTONS_TOP + 14, align=quoted("right"), fontSize=15, fontWeight=quoted("bold"),
        ),
        write(quoted("waiting: of all requests together"), WIDTH, BUTTONS_TOP + 34, align=quoted("right")),
        *(write(quoted(f"slot {s + 1}"), 0, LANES_TOP + s * (ROW + GAP) + 18) for s in range(slots)),
        mark(
            "rect", "lanes", x=time, y=lane, width=f"scale('steps', datum.start + datum.length) - {time}", height=ROW,
            fill=quoted(PALETTE[0]), fillOpacity="datum.rank > 0 ? 0.75 : 0.2", stroke=quoted(EDGE),
        ),
        write("datum.length", f"{time} + 3", f"{lane} + 18", "lanes"),
        mark("rule", x=end, x2=end, y=LANES_TOP - 6, y2=lanes_end, stroke=json.dumps(INK), strokeWidth=2),
        write("format(steps, 'd') + ' steps'", end, lanes_end + 16, align=quoted("center")),
    ]  # fmt: skip
    return marks


def _buttons(orders: dict[str, Order], facts: Sequence[str]) -> list[Spec]:
    """Draw each policy as a button: a click gives its order. Right of it stands what the policy reaches."""
    marks = []
    for n, (name, fact) in enumerate(zip(orders, facts, strict=True)):
        y = BUTTONS_TOP + 24 * n
        marks += [
            mark(
                "rect", name=f"order_{n}", x=LEFT, y=y, width=BUTTON_WIDTH, height=20, fill=quoted(PALETTE[0]),
                fillOpacity=0.2, stroke=quoted(EDGE), cornerRadius=4, cursor=quoted("pointer"),
            ),
            write(quoted(name), LEFT + BUTTON_WIDTH / 2, y + 14, align=quoted("center")),
            write(quoted(fact.removeprefix(f"{name}: ")), LEFT + BUTTON_WIDTH + 10, y + 14),
        ]  # fmt: skip
    return marks
