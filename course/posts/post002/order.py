"""Post 002: longest output first, simulated by the engine's own scheduler and block manager."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Any

from roseinfer.arrivals import Arrival
from roseinfer.engine.policies import ROUND
from roseinfer.simulator import EngineSetting, FloorCost, floor_cost, simulations
from roseinfer.simulator.result import ASSUMPTIONS

from ..data import post_table
from ..report.content import Exact, Grid, Ruled, Time, judged
from ..report.template import Values

SEED = 0
GPU = "RTX 4090"
PROMPT_LEN = 16
FIRST_COME, LONGEST_FIRST = "fcfs", "longest_output"
NAMES = {FIRST_COME: "first come", LONGEST_FIRST: "longest first"}
# From a number drawn from [0, 1) to an output length. Each has a mean of about 256 tokens.
EQUAL = "all 256"
LENGTHS: dict[str, Callable[[float], int]] = {
    EQUAL: lambda u: 256,
    "uniform, 1 to 511": lambda u: 1 + int(511 * u),
    "exponential, mean 256": lambda u: 1 + int(-256 * log(1 - u)),
}
POST_POOL, LARGE_POOL = "the post's", "large"
Runs = dict[tuple[str, str, str], dict[str, Any]]  # by LENGTHS, pool and policy: a row of a simulation


def order_section(about: Mapping[str, Any]) -> Values:
    cost, runs = step_cost(), simulated(about)
    large, posts = (fewest_steps(runs, pool) for pool in (LARGE_POOL, POST_POOL))
    slots, pool_tokens = about["decode_batch_size"], about["num_blocks"] * about["block_size"]
    most_running = max(pool_tokens / mean_length(about, lengths) for lengths in LENGTHS)
    decides = f"the pool, which holds about {most_running:.0f} of them, decides how many run, and not the slots"
    in_small_pool = Ruled(posts, "it depends", decides) if most_running < slots else posts
    posted = [(row.case, float(row.seconds_saved)) for row in post_table("002", "longest_first").itertuples()]
    return {
        "pool_tokens": pool_tokens,
        "budget": budget(about),
        "prompt_len": PROMPT_LEN,
        "seed": SEED,
        "gpu": GPU,
        "cost": cost.about,
        "assumptions": " ".join(ASSUMPTIONS),
        "round": ROUND,
        "facts": judged(
            "002",
            {
                "faster wherever lengths differ (here: in fewer steps), with room for all slots": large,
                "the same in the post's pool": in_small_pool,
                "more slots in use in a step, with room for all of them": fullest_batches(runs),
            },
        ),
        "times": [Time(f"saved by longest first, {case} case", "s", seconds, None) for case, seconds in posted],
        "runs": [[*key[:2], NAMES[key[2]], *_figures(row)] for key, row in runs.items()],
        "saved": saved_grid(runs, [seconds for _, seconds in posted]),
        "samples": {"runs": [{"lengths": key[0], "pool": key[1], **row} for key, row in runs.items()]},
    }


def saved_grid(runs: Runs, posted: Sequence[float]) -> Grid:
    """Show what longest first saves at the floor, and how many times as long steps must be to save the post's time."""
    rows: list[list[Exact | None]] = []
    for lengths in LENGTHS:
        first, longest = (runs[lengths, LARGE_POOL, policy] for policy in (FIRST_COME, LONGEST_FIRST))
        steps, seconds = (first[what] - longest[what] for what in ("steps", "seconds"))
        rows.append([lengths, steps, round(seconds, 2), *(round(s / seconds) if steps else None for s in posted)])
    return Grid(["lengths", "steps saved", "saved at the floor, s", *(f"for {s:g} s" for s in posted)], rows)


def step_cost() -> FloorCost:
    """Make the floor of a step on a card that has a data sheet; the post's machine is not named."""
    return floor_cost(GPU, "random:llama-7b", "float16")


def simulated(about: Mapping[str, Any]) -> Runs:
    slots, block_size = about["decode_batch_size"], about["block_size"]
    runs: Runs = {}
    for lengths in LENGTHS:
        arrivals = drawn_arrivals(about, lengths)
        longest = max(arrival.prompt_len + arrival.output_len for arrival in arrivals)
        pools = {POST_POOL: about["num_blocks"], LARGE_POOL: slots * -(-longest // block_size)}
        for pool, num_blocks in pools.items():
            setting = EngineSetting(
                num_blocks=num_blocks,
                block_size=block_size,
                max_num_seqs=slots,
                max_model_len=about["seq_length"],
                max_num_batched_tokens=budget(about),
            )
            found = simulations(arrivals, setting, step_cost(), policies=list(NAMES), replicas=[1])
            for row in found.rows:
                runs[lengths, pool, row["policy"]] = row
    return runs


def drawn_arrivals(about: Mapping[str, Any], lengths: str) -> list[Arrival]:
    """Draw requests at equal distances, as a load test sends them, with the same lengths on every machine.

    Random.random is the one draw that Python promises not to change.
    """
    draw = random.Random(SEED).random
    rate = about["requests_per_second"]
    return [Arrival(i / rate, PROMPT_LEN, LENGTHS[lengths](draw())) for i in range(about["num_requests"])]


def mean_length(about: Mapping[str, Any], lengths: str) -> float:
    """Compute the mean length of a request halfway through its output, in tokens."""
    arrivals = drawn_arrivals(about, lengths)
    return sum(arrival.prompt_len + arrival.output_len / 2 for arrival in arrivals) / len(arrivals)


def budget(about: Mapping[str, Any]) -> int:
    return about["decode_batch_size"] + about["prefill_batch_size"] * PROMPT_LEN


def fewest_steps(runs: Runs, pool: str) -> str:
    """Name the order that takes fewer steps at every length where the orders differ."""
    return _common_winner(runs, pool, lambda row: -row["steps"])


def fullest_batches(runs: Runs) -> str:
    return _common_winner(runs, LARGE_POOL, lambda row: row["rows_per_step"])


def _common_winner(runs: Runs, pool: str, figure: Callable[[dict[str, Any]], float]) -> str:
    """Name the order with the larger figure: "neither" if they are equal, "it depends" if lengths differ in it."""
    winners = set()
    for lengths in LENGTHS.keys() - {EQUAL}:
        first, longest = (figure(runs[lengths, pool, policy]) for policy in (FIRST_COME, LONGEST_FIRST))
        winners.add("neither" if first == longest else NAMES[LONGEST_FIRST if longest > first else FIRST_COME])
    return winners.pop() if len(winners) == 1 else "it depends"


def _figures(row: dict[str, Any]) -> list[Exact]:
    seconds = (row["seconds"], row["tail_seconds"], row["times"]["e2e_latency"]["mean"])
    return [row["steps"], round(row["rows_per_step"], 1), row["preemptions"], *(round(s, 1) for s in seconds)]
