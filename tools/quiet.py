"""Tells from a notebook's races whether the machine was quiet while they were recorded: spreads, twins, and floors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from nbformat import NotebookNode

from course.teach.served.chart import SERVED
from roseinfer.bench.neighbours import BUSY, apart
from roseinfer.bench.settings import ENGINE
from roseinfer.display.chart import VEGA_LITE

STAGE = re.compile(r"s\d\d_")


def busy_signs(nb: NotebookNode) -> list[str]:
    """List signs of a busy machine, a line each, by code cell as pytest --nbval counts them.

    Runs of one contender that lie far apart; twins that a race tells apart (a stage and a learner's class, in a
    notebook where exercises are unsolved, so that both run the same code); floors of one shape that differ; a stage
    that answers the 24 requests sooner than the engine.
    """
    signs = []
    floors: dict[str, list[float]] = defaultdict(list)
    for cell, spec in races(nb):
        bars = spec["datasets"]["bars"]
        for bar in bars:
            if apart(bar["low"], bar["high"]):
                signs.append(f"Cell {cell}: runs of {bar['name']} from {bar['low']:,.0f} to {bar['high']:,.0f} tok/s")
        if are_twins([bar["name"] for bar in bars]) and clearly_apart(*bars):
            speeds = " and ".join(f"{bar['name']} {bar['speed']:,.0f} tok/s" for bar in bars)
            signs.append(f"Cell {cell}: the same code twice, {speeds}")
        floors[spec["title"]] += [rule["speed"] for rule in spec["datasets"]["floor"]]
    signs += [f"Cell {cell}: {said}" for cell, said in warnings(nb)]
    signs += [f"Cell {cell}: {said}" for cell, rows in served(nb) if (said := not_the_best(rows))]
    for title, speeds in floors.items():
        if apart(min(speeds), max(speeds)):
            signs.append(f"floors of one shape ({title}) from {min(speeds):,.0f} to {max(speeds):,.0f} tok/s")
    return signs


def races(nb: NotebookNode) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the code cell, spec of its SpeedBars) of every finished race."""
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code):
        for output in cell.outputs:
            spec = output.get("data", {}).get(VEGA_LITE, {})
            if spec.get("datasets", {}).keys() >= {"bars", "floor"} and spec["datasets"]["floor"]:
                yield number, spec


def served(nb: NotebookNode) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield (number of the code cell, what each stage took) of every chart of the same 24 requests."""
    for number, cell in enumerate(cell for cell in nb.cells if cell.cell_type == "code"):
        for output in cell.outputs:
            if rows := output.get("data", {}).get(VEGA_LITE, {}).get("datasets", {}).get(SERVED):
                yield number, rows


def not_the_best(rows: Sequence[dict[str, Any]]) -> str:
    """Say which stage was faster than the engine, and what to look at; "" where none was."""
    engine = next(row for row in rows if row["name"] == ENGINE)
    faster = [row for row in rows if row["seconds"] < engine["seconds"]]
    if not faster:
        return ""
    best = min(faster, key=lambda row: row["seconds"])
    return (
        f"{best['name']} answers the requests in {best['seconds']:.2f} s, the engine in {engine['seconds']:.2f} s: was "
        f"the machine quiet (the engine's runs: {engine['fastest']:.2f} to {engine['slowest']:.2f} s)? Then look at "
        "what this stage does and the engine does not"
    )


def warnings(nb: NotebookNode) -> Iterator[tuple[int, str]]:
    """Yield (number of the code cell, sentence) of every page that says the machine was busy."""
    for number, cell in enumerate(cell for cell in nb.cells if cell.cell_type == "code"):
        for output in cell.outputs:
            if said := re.search(f"{BUSY}: [^<]*", output.get("data", {}).get("text/html", "")):
                yield number, said[0]


def are_twins(names: list[str]) -> bool:
    """Tell whether these are a stage and a learner's class, which is that stage until solved. The engine is no twin."""
    if len(names) != 2 or not STAGE.match(names[0]):
        return False
    other = names[1]
    return not STAGE.match(other) and other != ENGINE and " " not in other


def clearly_apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether the gap between two bars' ranges is more than half the wider one.

    A race's own verdict tells twins apart 1 time in 10 on any machine, so it is no sign of a busy one; this, with the
    noise of a quiet machine, comes 1 time in 40.
    """
    gap = max(one["low"], other["low"]) - min(one["high"], other["high"])
    return gap > max(bar["high"] - bar["low"] for bar in (one, other)) / 2
