"""The page of walk_rounding: rounding as Vega transforms, so that a dragged outlier moves every grid and count."""

from __future__ import annotations

from collections.abc import Mapping

from course.display.computed_picture import ComputedPicture, Spec

from .rounding_marks import GRID, GRID_TOP, LEFT, NEAREST, ROW, ROW_TOP, WIDTH, height_of, marks_of
from .text_price import LEVELS

TIMES_DECIMALS = 2  # the slider has its value beside it
MOST_TIMES = 20  # as large as a reader can make the outlier, at least


def page_of(values: list[float], bytes_per_value: Mapping[int, float], text: str, shown: int | None) -> ComputedPicture:
    """Build the page. bytes_per_value: bytes by the number of values that share a scale, the whole row first."""
    outlier, other, times = outlier_of(values)
    most = max(MOST_TIMES, round(2 * times))
    settings = [
        {"row": n, "group": group, "name": str(group) if n else "the whole row", "bytes": size}
        for n, (group, size) in enumerate(bytes_per_value.items())
    ]
    sign = 1 if values[outlier] > 0 else -1
    drawn = f"datum.i == {outlier} ? {sign} * times * {other} : datum.given"
    names = {setting["group"]: f"stats_{setting['group']}" for setting in settings}
    stats = [table for group, name in names.items() for table in _stats(name, str(group))]
    chosen = " : ".join(f"datum.group == {group} ? data('{name}')[0]" for group, name in names.items())
    return ComputedPicture(
        text,
        height_of(len(settings)),
        _signals(settings, times, most, other),
        marks_of(len(values), len(settings)),
        [
            {"name": "given", "values": [{"i": i, "given": value} for i, value in enumerate(values)]}
            | {"transform": [_formula("x", drawn)]},
            {"name": "values", "source": "given", "transform": _rounding("group")},
            _some("outlier", "values", f"datum.i == {outlier}"),
            _groups(),
            _lines(),
            *stats,
            {"name": "settings", "values": settings, "transform": [_formula("stats", f"{chosen} : null")]},
            _some("now", "settings", "datum.group == group"),
        ],
        _scales(len(values), most * other, other),
        still={"group": shown or len(values)},
    )


def outlier_of(values: list[float]) -> tuple[int, float, float]:
    """Find the place of the largest absolute value, the largest other one, and the quotient of the two."""
    place = max(range(len(values)), key=lambda i: abs(values[i]))
    other = max(abs(value) for i, value in enumerate(values) if i != place)
    return place, other, round(abs(values[place]) / other, TIMES_DECIMALS)


def _signals(settings: list[Spec], times: float, most: int, other: float) -> list[Spec]:
    drag = "[@handle:mousedown, window:mouseup] > window:mousemove!"
    at = f"clamp(round(10 * invert('size', y()) / {other}) / 10, 1, {most})"
    choice = {
        "input": "select",
        "options": [setting["group"] for setting in settings],
        "labels": [setting["name"] for setting in settings],
        "name": "values that share a scale: ",
    }
    size = {"input": "range", "min": 1, "max": most, "step": 0.1, "name": "outlier, times the largest other value: "}
    return [
        {"name": "times", "value": times, "bind": size, "on": [{"events": drag, "update": at}]},
        {
            "name": "group",
            "value": settings[0]["group"],
            "bind": choice,
            "on": [{"events": "@setting:click", "update": "datum.group"}],
        },
    ]


def _rounding(group: str) -> list[Spec]:
    """Compute each value's group, its step, what it is rounded to, and whether it is lost: rounded to 0, but not 0."""
    return [
        _formula("part", f"floor(datum.i / {group})"),
        _formula("size", "abs(datum.x)"),
        {"type": "joinaggregate", "groupby": ["part"], "ops": ["max"], "fields": ["size"], "as": ["largest"]},
        _formula("step", f"datum.largest / {LEVELS}"),
        _formula("rounded", "datum.step ? round(datum.x / datum.step) * datum.step : 0"),
        _formula("lost", "datum.x != 0 && datum.rounded == 0"),
        _formula("error", "datum.x ? abs(datum.x - datum.rounded) / datum.size : null"),
    ]


def _stats(name: str, group: str) -> list[Spec]:
    ops = {"ops": ["sum", "mean"], "fields": ["lost", "error"], "as": ["zeros", "error"]}
    return [{"name": name, "source": "given", "transform": [*_rounding(group), {"type": "aggregate", **ops}]}]


def _groups() -> Spec:
    ops = {"ops": ["max", "min", "max"], "fields": ["step", "i", "i"], "as": ["step", "first", "last"]}
    apart = "scale('value', 0) - scale('value', datum.step)"
    return {
        "name": "groups",
        "source": "values",
        "transform": [{"type": "aggregate", "groupby": ["part"], **ops}, _formula("apart", apart)],
    }


def _lines() -> Spec:
    """Compute the levels of each grid that has room for lines."""
    most = GRID // NEAREST // 2 + 1
    return {
        "name": "lines",
        "source": "groups",
        "transform": [
            {"type": "filter", "expr": f"datum.apart >= {NEAREST}"},
            _formula("level", f"sequence({-most}, {most + 1})"),
            {"type": "flatten", "fields": ["level"]},
            _formula("at", "datum.level * datum.step"),
            {"type": "filter", "expr": "abs(datum.at) <= domain('value')[1]"},
        ],
    }


def _some(name: str, source: str, kept_if: str) -> Spec:
    return {"name": name, "source": source, "transform": [{"type": "filter", "expr": kept_if}]}


def _scales(length: int, most: float, other: float) -> list[Spec]:
    linear = {"type": "linear", "zero": False}
    near = 1.08 * other
    return [
        {"name": "place", "domain": [0, length], "range": [LEFT, LEFT + WIDTH], **linear},
        {"name": "size", "domain": [0, most], "range": [ROW_TOP + ROW, ROW_TOP], **linear},
        {"name": "value", "domain": [-near, near], "range": [GRID_TOP + GRID, GRID_TOP], "clamp": True, **linear},
    ]


def _formula(name: str, expr: str) -> Spec:
    return {"type": "formula", "as": name, "expr": expr}
