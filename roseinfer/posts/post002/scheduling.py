"""Post 002: the order of requests when output lengths are known, and requests that were never aborted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import log
from typing import Any

from roseinfer.blocks import BlockTables

from ..data import post_table, source_of
from ..report.content import Exact, Grid, Section, Time, judge
from .abort_loop import Abort, Scheduler, abort_each, abort_the_set, run_out
from .output_order import ORDERS, ListSchedule, decode_all, least_steps

SEED = 0
# From a number drawn from [0, 1) to an output length. Each has a mean of about 256 tokens.
LENGTHS: dict[str, Callable[[float], int]] = {
    "all 256": lambda u: 256,
    "uniform, 1 to 511": lambda u: 1 + int(511 * u),
    "exponential, mean 256": lambda u: 1 + int(-256 * log(1 - u)),
}
ABORTS: dict[str, tuple[Abort, bool]] = {  # how the server aborts, and whether blocks are freed
    "abort_request(ids), the bug": (abort_the_set, True),
    "abort_request(id) for each id": (abort_each, True),
    "the same, and no block is freed": (abort_each, False),
}


def drawn_lengths(num_requests: int, length_of: Callable[[float], int]) -> list[int]:
    """Output lengths, the same on every machine: Random.random is the one draw that Python promises not to change."""
    draw = random.Random(SEED).random
    return [length_of(draw()) for _ in range(num_requests)]


def order_section(about: Mapping[str, Any]) -> Section:
    num_requests, slots = about["num_requests"], about["decode_batch_size"]
    schedules = order_schedules(num_requests, slots)
    here = fewest_steps(schedules)
    claimed = about["claims"]["faster_order"]
    return Section(
        "Longest output first",
        [
            "In the contest the number of output tokens of each request is known, and the post decodes the longest "
            f"first. Here {num_requests:,} requests wait for {slots} slots, and steps are counted. The post does not "
            f"give its output lengths: ours are drawn with seed {SEED} from three distributions.",
            "Longest first ends with short outputs, so the batch stays full almost to the end. First come may start a "
            "long output late, and then a few requests hold a nearly empty batch. A step reads all weights whether it "
            "serves few requests or many, so fewer steps are less time.",
            "Where it loses: with equal lengths it gains nothing, and short requests wait for all the long ones. The "
            "mean latency is higher than for first come, and that of the shortest tenth far higher. And a server "
            "outside of a contest does not know the lengths beforehand.",
            "Counted with all requests there from the start, and prefills left out. The post's requests come in over "
            f"{about['seconds']} seconds, which leaves the order fewer to choose from. Its seconds are another "
            "machine's, so they stand alone.",
        ],
        facts=[
            judge(
                "faster wherever lengths differ (here: in fewer steps), first come or longest first",
                claimed, here, why="the post's order", source=source_of(about, "claims.faster_order"),
            )
        ],
        times=[
            Time(f"saved by longest first, {row.case} case", "s", float(row.seconds_saved), None)
            for row in post_table("002", "longest_first").itertuples()
        ],
        grids=[
            Grid(
                f"{num_requests:,} requests, {slots} slots; latencies are in steps",
                ["lengths", "order", "steps", "at least", "mean batch", "mean latency", "shortest tenth"],
                [_row(lengths, order, run, slots) for (lengths, order), run in schedules.items()],
            )
        ],
    )  # fmt: skip


def order_schedules(num_requests: int, slots: int) -> dict[tuple[str, str], ListSchedule]:
    """A schedule for each (name of LENGTHS, name of ORDERS)."""
    drawn = {name: drawn_lengths(num_requests, length_of) for name, length_of in LENGTHS.items()}
    return {(name, order): decode_all(lengths, slots, order) for name, lengths in drawn.items() for order in ORDERS}


def fewest_steps(schedules: Mapping[tuple[str, str], ListSchedule]) -> str:
    """Of the post's two orders the one with fewer steps for all lengths that differ; "neither" when it depends."""
    post_orders = ("first come", "longest first")
    winners = set()
    for lengths in {name for name, _ in schedules}:
        steps = [schedules[lengths, order].steps for order in post_orders]
        if len(set(schedules[lengths, "first come"].lengths)) > 1:
            winners.add("neither" if steps[0] == steps[1] else post_orders[steps.index(min(steps))])
    return winners.pop() if len(winners) == 1 else "neither"


def _row(lengths: str, order: str, run: ListSchedule, slots: int) -> list[Exact | None]:
    figures = (run.mean_batch, run.mean_latency, run.shortest_tenth_latency)
    rounded = [None if figure is None else round(figure, 1) for figure in figures]
    return [lengths, order, run.steps, least_steps(run.lengths, slots), *rounded]


def abort_section(about: Mapping[str, Any]) -> Section:
    claims = about["claims"]
    wanted = drawn_lengths(about["prefill_batch_size"], lambda u: 1 + int(64 * u))
    rows: list[list[Exact]] = []
    extra_steps: list[Exact] = []
    for name, (abort, frees) in ABORTS.items():
        tables = BlockTables(1, about["num_blocks"], about["block_size"])
        made = run_out(Scheduler(wanted, tables, frees), abort)
        tables.check()
        extra_steps.append(_common({ran - asked for ran, asked in zip(made, wanted, strict=True)}))
        rows.append([name, sum(made), sum(made) - sum(wanted), tables.num_blocks - tables.num_free])
    return Section(
        "Requests that were never aborted",
        [
            "The server hands abort_request a set of ids, and the scheduler compares the id of each running request "
            "with it. An id never equals a set, so nothing is aborted, and a finished request runs until it has more "
            "tokens than it asked for. The post calls abort_request once for each id.",
            f"Here a scheduler of a few lines runs {len(wanted)} requests. An abort must also give the blocks back: "
            "the last row is the same fix without that, and its blocks are lost to all later requests.",
        ],
        facts=[
            judge(
                "steps a request runs too long, with the bug",
                claims["extra_steps_with_the_bug"], extra_steps[0], rule=1, why="one step past what it asked for",
                source=source_of(about, "claims.extra_steps_with_the_bug"),
            ),
            judge(
                "steps a request runs too long, fixed",
                claims["extra_steps_fixed"], extra_steps[1], rule=0, why="aborted before the next step",
                source=source_of(about, "claims.extra_steps_fixed"),
            ),
        ],
        grids=[
            Grid(
                f"{len(wanted)} requests that ask for {sum(wanted)} tokens",
                ["the server calls", "steps of all requests", "too many", "blocks held at the end"],
                rows,
            )
        ],
    )  # fmt: skip


def _common(values: set[int]) -> Exact:
    """The value that all requests have; where they differ, all values in words."""
    return next(iter(values)) if len(values) == 1 else " or ".join(map(str, sorted(values)))
