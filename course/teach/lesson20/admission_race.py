"""race_admission: an overload of a simulated server under several rules of admission."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from roseinfer.display.table import Table

from ..views.rows_table import table
from .simulated_load import TPOT_LIMIT, TTFT_LIMIT, Admit, simulate_load

RATE, SECONDS = 50.0, 8.0
FORMATS = {"good/s": "{:.1f}", "answers/s": "{:.1f}", "TTFT p99 ms": "{:,.0f}"}


def race_admission(rules: Mapping[str, Admit]) -> Table:
    """Simulate 50 requests per second on the server of draw_load under each rule: exact, by the scheduler's own clock.

    rules: as exercise 20.4 has them, by name. A rule that returns None, as an empty answer does, lets every request in.
    """
    rows: list[dict[str, Any]] = []
    for name, rule in rules.items():
        load = simulate_load(RATE, SECONDS, or_everyone(rule))
        rows.append({"rule": name, "answered": len(load.requests), "refused (429)": load.refused})
        rows[-1] |= {"answers/s": load.throughput, "good/s": load.goodput, "TTFT p99 ms": 1e3 * load.p99_ttft}
    title = (
        f"{RATE:g} requests arrive per second for {SECONDS:g} s, simulated; good: TTFT within {1e3 * TTFT_LIMIT:g} ms, "
        f"TPOT within {1e3 * TPOT_LIMIT:g} ms"
    )
    return table(rows, title=title, formats=FORMATS)


def or_everyone(rule: Admit) -> Admit:
    """Return the rule, or one that lets every request in where it is not written yet."""
    return (lambda *state: True) if rule(0, 0, [0.0, 1.0], inf) is None else rule


def at_most(num_waiting: int) -> Admit:
    """Make the rule of `--max-queue`: so many requests may wait."""
    return lambda num_queued, num_free, ends, limit: num_queued - num_free < num_waiting
