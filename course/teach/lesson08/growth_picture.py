"""draw_growth: bytes copied and bytes held while a sequence grows token by token, by the way a full tensor grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from roseinfer.arguments import is_integer, require_count
from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE

if TYPE_CHECKING:
    import altair

KEPT = "kept: what the tokens need"
WIDTH, HEIGHT = PAGE_WIDTH - 100, 150  # pixels of a panel
COLOURS = (PALETTE[3], PALETTE[2], PALETTE[0], PALETTE[5], PALETTE[4])
COPIED, HELD, TOKENS = "bytes copied, log", "bytes held", "tokens of the sequence"


class Room(NamedTuple):
    """Tensor with room for more tokens than it holds. Each field counts tokens.

    tokens: held. copied: so far. capacity: of the tensor. peak: capacity of all tensors that exist while this one
    grows.
    """

    tokens: int
    copied: int
    capacity: int
    peak: int


def grow_room(grow: Callable[[int], int], num_tokens: int, capacity: int = 16) -> list[Room]:
    """Append tokens one by one. grow: maps the capacity of a full tensor to the next capacity.

    Raises ValueError when grow gives no larger capacity.
    """
    copied, rooms = 0, []
    for held in range(num_tokens):
        peak = capacity
        if held == capacity:
            larger = grow(capacity)
            if not is_integer(larger) or larger <= capacity:
                raise ValueError(f"grow must give an integer above {capacity}, got {larger!r}")
            copied, peak, capacity = copied + held, capacity + larger, larger
        rooms.append(Room(held + 1, copied, capacity, peak))
    return rooms


def draw_growth(
    ways: Mapping[str, Callable[[int], int]], bytes_per_token: int, num_tokens: int = 256, capacity: int = 16
) -> Chart:
    """Chart one sequence that grows token by token. ways: maps a name to a function, from a full capacity to the next.

    bytes_per_token: K and V of a token in all layers. capacity: of the first tensor, in tokens.
    Above are the bytes copied to larger tensors so far, below the bytes of the tensor; the dashed line is what the
    tokens need.
    Raises ValueError for a bad argument.
    """
    import altair as alt
    import pandas as pd

    for name, value in (("bytes_per_token", bytes_per_token), ("num_tokens", num_tokens), ("capacity", capacity)):
        require_count(name, value, at_least=1)
    if not 1 <= len(ways) <= len(COLOURS):
        raise ValueError(f"ways must be 1 to {len(COLOURS)} ways to grow, got {len(ways)}")
    rooms = {way: grow_room(grow, num_tokens, capacity) for way, grow in ways.items()}
    rows = [
        (way, room.tokens, bytes_per_token * room.copied, bytes_per_token * room.capacity)
        for way, own in rooms.items()
        for room in own
    ]
    data = csv_data(pd.DataFrame(rows, columns=["way", "tokens", "copied", "held"]))
    scale = alt.Scale(domain=[*ways, KEPT], range=[*COLOURS[: len(ways)], INK])
    colour = alt.Color("way:N", title=None, scale=scale, legend=alt.Legend(orient="top", symbolType="stroke"))
    base = alt.Chart(data).encode(color=colour, tooltip=["way:N", "tokens:Q", "copied:Q", "held:Q"])
    copied = base.transform_filter("datum.copied > 0").mark_line(interpolate="step-after")  # a log scale has no 0
    copied = copied.encode(_tokens(None), _bytes("copied", COPIED, type="log"))
    held = base.mark_line(interpolate="step-after").encode(_tokens(TOKENS), _bytes("held", HELD))
    needed = pd.DataFrame({"tokens": [1, num_tokens], "way": KEPT})
    needed["held"] = bytes_per_token * needed["tokens"]
    kept = alt.Chart(csv_data(needed)).mark_line(strokeDash=[4, 3])
    kept = kept.encode(_tokens(TOKENS), _bytes("held", HELD), color=colour)
    panels = [copied.properties(width=WIDTH, height=HEIGHT), (held + kept).properties(width=WIDTH, height=HEIGHT)]
    return Chart(alt.vconcat(*panels, spacing=12), _facts(rooms, bytes_per_token))


def _tokens(title: str | None) -> altair.X:
    import altair as alt

    return alt.X("tokens:Q", title=title, scale=alt.Scale(nice=False, zero=True))


def _bytes(field: str, title: str, **scale: Any) -> altair.Y:
    import altair as alt

    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(**scale), axis=alt.Axis(format="~s", tickCount=4))


def _facts(rooms: Mapping[str, list[Room]], size: int) -> str:
    first = next(iter(rooms.values()))
    lines = [f"{first[-1].tokens} tokens of {size:,} bytes, {size * first[-1].tokens:,} bytes kept"]
    for way, own in rooms.items():
        last, peak = own[-1], max(room.peak for room in own)
        lines.append(
            f"{way}: {size * last.copied:,} bytes copied, {size * last.capacity:,} held, "
            f"at most {size * peak:,} while a tensor grows"
        )
    return "\n".join(lines)
