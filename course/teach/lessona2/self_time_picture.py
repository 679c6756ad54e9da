"""walk_self_time: the nested events of a made-up forward, each with its inclusive time, children and self time."""

from __future__ import annotations

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE

from .events import Event, Events, op, span

# In the order of their ids.
WIDTH = 30  # of the whole, in microseconds
EXAMPLE = [
    span(0, WIDTH),
    op("linear", 2, 16),
    op("t", 3, 5),
    op("addmm", 6, 15),
    op("copy_", 8, 11),
    op("zeros", 19, 28),
    op("empty", 20, 22),
    op("zero_", 23, 27),
]
CHOSEN, CHILD = PALETTE[0], PALETTE[1]
OWN_STRENGTH, CHILD_STRENGTH = 0.75, 0.3
INNERMOST = "innermost"
PIXELS = 24  # per microsecond


def walk_self_time() -> Board:
    """Show a frame for each event of EXAMPLE: its self time is coloured, its children are pale."""
    frames = [_frame(number) for number in range(len(EXAMPLE))]
    legend = [
        Cell(0, 0, "the event's self time", CHOSEN, strength=OWN_STRENGTH),
        Cell(0, 0, "events directly inside it", CHILD, strength=CHILD_STRENGTH),
    ]
    text = "\n".join(_sentence(event) for event in EXAMPLE)
    return Board(frames, text, label="event", shown=3, legend=legend)


def children(event: Event, events: Events = EXAMPLE) -> Events:
    """List the events directly inside an event."""
    return [other for other in events if depth(other, events) == depth(event, events) + 1 and _inside(other, event)]


def depth(event: Event, events: Events = EXAMPLE) -> int:
    """Count the events that an event lies in."""
    return sum(_inside(event, other) for other in events)


def self_us(event: Event) -> float:
    return event.dur - sum(child.dur for child in children(event))


def _inside(inner: Event, outer: Event) -> bool:
    return inner is not outer and outer.ts <= inner.ts and inner.end <= outer.end


def _sentence(event: Event) -> str:
    inner = [child.dur for child in children(event)]
    less = f"{event.dur} - {' - '.join(map(str, inner))} = " if inner else ""
    return f"{event.name}: inclusive {event.dur} µs, self {less}{self_us(event)} µs"


def _frame(number: int) -> Frame:
    chosen = EXAMPLE[number]
    inner = children(chosen)
    deepest = max(map(depth, EXAMPLE))
    own = [at for at in range(WIDTH) if _innermost(at) is chosen]
    level = depth(chosen)
    cells = [Cell(level, at, colour=CHOSEN, strength=OWN_STRENGTH, outline="none") for at in own]
    cells += [_bar(event, chosen, inner) for event in EXAMPLE]
    cells += [
        Cell(
            deepest + 1,
            at,
            colour=CHOSEN if at in own else "",
            strength=OWN_STRENGTH,
            tooltip=_innermost(at).name,
        )
        for at in range(WIDTH)
    ]
    rows = [*(f"depth {level}" for level in range(deepest + 1)), INNERMOST]
    panel = Panel(cells, rows=rows, unit="µs", cell=(PIXELS, 30), size=11)
    return Frame([panel], heading=_sentence(chosen))


def _bar(event: Event, chosen: Event, inner: Events) -> Cell:
    name = event.name.removeprefix("roseinfer.")
    fits = len(name) * 7 < event.dur * PIXELS
    return Cell(
        depth(event),
        event.ts,
        name if fits else name.removeprefix("aten::"),
        CHILD if event in inner else "",
        strength=CHILD_STRENGTH,
        outline=CHOSEN if event is chosen else "",
        width=event.dur,
        tooltip=_sentence(event),
    )


def _innermost(at: int) -> Event:
    """Find the deepest event that runs in the microsecond from `at` on."""
    return max((event for event in EXAMPLE if event.ts <= at < event.end), key=depth)
