"""labels: where the texts beside the points of a chart go, so that none lies on another point or on its own curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, hypot
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

Place = tuple[float, float]  # in pixels, y upwards

NEAR_X, NEAR_Y = 32, 18  # pixels: a short text's size
APART = 8  # pixels between a point and its text
# How a text mark reads the columns that budget_labels adds.
BESIDE = {name: {"expr": f"datum.{name}"} for name in ("dx", "dy", "align")}


class Label(NamedTuple):
    """The text beside a point, "" for none, and where it is drawn: offsets in pixels, y downwards."""

    text: str
    dx: float = APART
    dy: float = 0
    align: str = "left"


def labels(
    places: Sequence[Place],
    texts: Sequence[str],
    width: float,
    is_curve: bool = False,
    join: Callable[[list[str]], str] = ", ".join,
) -> list[Label]:
    """Make a label for each group of points too near for one each, and Label("") for the others of the group.

    width: of the plot; in its right half a group's label is left of it. is_curve: a line joins the places in their
    order; a point's label is on the side that the line leaves free, and a flat group's above or below it. join: joins a
    group's texts.
    """
    found = [Label("")] * len(places)
    for group in groups(places):
        if len(group) == 1 and is_curve:
            found[group[0]] = _off_the_curve(places, group[0], texts[group[0]])
            continue
        across = sorted(group, key=lambda i: places[i][0])
        left, middle, right = across[0], across[len(across) // 2], across[-1]
        heights = [places[i][1] for i in group]
        text = join([texts[i] for i in group])
        if is_curve and places[right][0] - places[left][0] > max(heights) - min(heights):
            beside = {j for i in group for j in (i - 1, i + 1) if 0 <= j < len(places)} - {*group}
            below = min(heights) > 1.4 * NEAR_Y and sum(places[j][1] for j in beside) > len(beside) * max(heights)
            edge = min(heights) - NEAR_Y if below else max(heights) + NEAR_Y
            found[middle] = Label(text, 0, places[middle][1] - edge, "center")
        elif len(group) > 1 and places[right][0] > width / 2:
            found[left] = Label(text, -APART, 0, "right")
        else:
            found[right] = Label(text)
    return found


def groups(places: Sequence[Place]) -> list[list[int]]:
    """Group the numbers of the places, together where one is near the next."""
    left, found = set(range(len(places))), []
    while left:
        group, border = [], [min(left)]
        left -= set(border)
        while border:
            here = border.pop()
            group.append(here)
            near = {i for i in left if _near(places[here], places[i])}
            left -= near
            border += near
        found.append(sorted(group))
    return found


def _near(a: Place, b: Place) -> bool:
    return abs(a[0] - b[0]) < NEAR_X and abs(a[1] - b[1]) < NEAR_Y


def _off_the_curve(places: Sequence[Place], here: int, text: str) -> Label:
    x, y = places[here]
    away_x = away_y = 0.0
    for other in (here - 1, here + 1):
        if 0 <= other < len(places):
            to_x, to_y = places[other][0] - x, places[other][1] - y
            length = hypot(to_x, to_y) or 1.0
            away_x, away_y = away_x - to_x / length, away_y - to_y / length
    align = "right" if away_x < 0 else "left"
    return Label(text, copysign(APART, away_x), -copysign(APART, away_y), align)


def budget_labels(
    frame: pd.DataFrame, x: str, y: str, size: tuple[int, int], beyond: float, ends: tuple[float, float] | None = None
) -> pd.DataFrame:
    """Add the columns of Label to a curve over budgets: label, dx, dy, align.

    size: of the plot, in pixels; its axes begin at 0 and end at `beyond` times `ends`, by default the curve's own
    largest values.
    """
    if not len(frame):
        return frame
    most = ends or (frame[x].max(), frame[y].max())
    per_x, per_y = (pixels / (beyond * (value or 1)) for pixels, value in zip(size, most, strict=True))
    places = [(per_x * a, per_y * b) for a, b in zip(frame[x], frame[y], strict=True)]
    found = labels(places, [str(budget) for budget in frame["budget"]], size[0], is_curve=True, join=_range)
    columns = dict(zip(("label", "dx", "dy", "align"), zip(*found, strict=True), strict=True))
    return frame.assign(**{name: list(values) for name, values in columns.items()})


def _range(texts: list[str]) -> str:
    """Join the texts, or the first and the last of more than two."""
    return ", ".join(texts) if len(texts) < 3 else f"{texts[0]}, ..., {texts[-1]}"
