"""Post 003: its sweep over max_num_batched_tokens: simulated at its size, and run by the engine at a smaller one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median, mode
from typing import Any

import torch

from roseinfer.arrivals import Arrival, at_once
from roseinfer.bench.online.serve import serve
from roseinfer.bench.race import Run
from roseinfer.bench.settings import Workload
from roseinfer.bench.workload import with_prompts
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.models import Model, model_config
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.profiling.floors import step_terms
from roseinfer.simulator import Cost, EngineSetting, FloorCost, StepWork, floor_cost, simulations
from roseinfer.simulator.result import ASSUMPTIONS

from ..data import post_facts, post_table
from ..planned import engine_of
from ..report.content import Exact, Time, judged
from ..report.setting import Setting
from ..report.template import Values
from .host import most_gain

CARD = "RTX 4090"
# The post's two models by their published shapes.
QWEN_7B = model_config("random:qwen2.5-7b")
SHAPES = {
    "7B": QWEN_7B,
    "1.5B": replace(
        QWEN_7B,
        hidden_size=1536,
        num_layers=28,
        num_heads=12,
        num_kv_heads=2,
        intermediate_size=8960,
        vocab_size=151936,
        tie_embeddings=True,
    ),
}
REQUESTS, QUICK_REQUESTS = 16, 6  # of the engine's own runs
SAME_STEP = 0.05  # a step that is within this of another one takes as long


def engine(setting: Setting) -> PlannedEngine:
    """Plan the engine with the largest budget; those with smaller budgets have no more sequences than tokens."""
    about, model = post_facts("003"), setting.model or "tiny"
    prompt_len, output_len = lengths(about, model)
    fill_a_step = -(-max(about["budgets"]) // prompt_len)
    num_requests = max(fill_a_step, QUICK_REQUESTS if setting.quick else REQUESTS)
    return setting.engine(model, num_requests, prompt_len + output_len, dtype="float32")


def section(about: Mapping[str, Any], setting: Setting) -> Values:
    simulated = {
        name: {budget: simulated_run(about, budget, step_cost(name)) for budget in about["budgets"]} for name in SHAPES
    }
    config = engine(setting)
    model = setting.load(config)
    prompt_len, output_len = lengths(about, config.model)
    work = Workload(config.max_num_seqs, (prompt_len, prompt_len), (output_len, output_len))
    setting.say(f"{config.max_num_seqs} requests for each of {len(about['budgets'])} budgets, {config.model}")
    served = {budget: served_run(config, model, work, budget) for budget in about["budgets"]}
    all_rows = [row for rows in simulated.values() for row in rows.values()]
    spread, held = max(row["spread"] for row in all_rows), {row["held"] for row in all_rows}
    return {
        "num_requests": config.max_num_seqs,
        "prompt_len": prompt_len,
        "output_len": output_len,
        "cost": step_cost("7B").about,
        "assumptions": " ".join(ASSUMPTIONS),
        "host_ms": host_ms(),
        "card": CARD,
        "facts": judged(
            "003",
            {
                f"what decides a step's time, within {SAME_STEP:.0%}": (
                    "max_num_batched_tokens" if spread < SAME_STEP else "more than max_num_batched_tokens"
                ),
                "what a full step holds once requests run": " or ".join(sorted(held)),
            },
        ),
        "times": [
            time
            for budget, run in served.items()
            for time in (
                Time(f"full step, budget {budget}", "ms", None, 1e3 * full_step_seconds(run)),
                Time(f"throughput, budget {budget}", "requests/s", None, len(run.requests) / run.seconds),
            )
        ],
        "simulated": {name: [shown(budget, row) for budget, row in rows.items()] for name, rows in simulated.items()},
        "served": [
            [
                budget,
                max(step.num_tokens for step in run.steps),
                len(run.steps),
                simulated_row(work.arrivals(None), budget, config.max_num_seqs, step_cost("7B"))["steps"],
            ]
            for budget, run in served.items()
        ],
        "samples": {str(budget): run.record() for budget, run in served.items()},
    }


def lengths(about: Mapping[str, Any], spec: str) -> tuple[int, int]:
    """Return the number of tokens in and out; a model with few positions gets shorter prompts."""
    output_len = about["output_len"]
    return min(about["input_len"], model_config(spec).max_model_len - output_len), output_len


# Simulated


def host_ms() -> float:
    return float(post_table("003", "steps")["host_ms"].iloc[0])


def step_cost(name: str) -> FloorCost:
    """Make the floor of a step on the post's card, with its host work; no rate for the 7B's fp8 is known."""
    cost = floor_cost(CARD, "random:qwen2.5-7b", "float16", host_ms() / 1e3)
    return replace(cost, terms=step_terms(SHAPES[name], torch.float16))


def simulated_run(about: Mapping[str, Any], budget: int, cost: Cost) -> dict[str, Any]:
    """Simulate a budget, and return the simulation's figures with some about its steps.

    These are ms and host_ms of a step in the mean, the spread of full steps, and what most of them held.
    """
    n = about["num_requests"]
    arrivals = at_once(n, prompt_lens=(about["input_len"],) * 2, output_lens=(about["output_len"],) * 2)
    recorded = RecordingCost(cost)
    row = simulated_row(arrivals, budget, n, recorded)
    full = [seconds for work, seconds in recorded.steps if tokens_of(work) == budget]
    ms = 1e3 * row["seconds"] / row["steps"]
    return row | {
        "ms": ms,
        "host_ms": ms * row["host_share"],
        "spread": max(full) / min(full) - 1,
        "held": usual_holding(recorded, budget),
    }


def shown(budget: int, row: Mapping[str, Any]) -> list[Exact]:
    return [
        budget,
        row["steps"],
        round(row["requests_per_second"], 1),
        round(row["ms"], 2),
        round(row["ms"] - row["host_ms"], 2),
        f"{row['spread']:.1%}",
        f"×{most_gain(row['ms'], row['host_ms']):.3f}",
    ]


def tokens_of(work: StepWork) -> int:
    return work.num_decodes + work.prompt_tokens


def usual_holding(recorded: RecordingCost, budget: int) -> str:
    held = [
        " and ".join(name for name, n in (("prompts", work.prompt_tokens), ("decodes", work.num_decodes)) if n)
        for work, _ in recorded.steps
        if tokens_of(work) == budget
    ]
    return mode(held)


class RecordingCost:
    """A cost that keeps what each step had to do, and its seconds."""

    def __init__(self, cost: Cost) -> None:
        self.cost, self.about = cost, cost.about
        self.steps: list[tuple[StepWork, float]] = []

    def seconds(self, work: StepWork) -> tuple[float, float]:
        host, device = self.cost.seconds(work)
        self.steps.append((work, host + device))
        return host, device

    def to_dict(self) -> dict[str, Any]:
        return self.cost.to_dict()


def simulated_row(arrivals: list[Arrival], budget: int, max_num_seqs: int, cost: Cost) -> dict[str, Any]:
    """Simulate the post's program: no more sequences than tokens, no prefix cache, and room for all."""
    longest = max(arrival.prompt_len + arrival.output_len for arrival in arrivals)
    max_num_seqs = min(budget, max_num_seqs)
    setting = EngineSetting(
        num_blocks=max_num_seqs * -(-longest // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_model_len=longest,
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
    )
    return simulations(arrivals, setting, cost, policies=["fcfs"], replicas=[1]).rows[0]


# On the engine


def served_run(config: PlannedEngine, model: Model, work: Workload, budget: int) -> Run:
    engine = engine_of(config, model, max_num_seqs=min(budget, config.max_num_seqs), max_num_batched_tokens=budget)
    engine.warm_up()
    return serve(engine, with_prompts(work.arrivals(None), model))


def full_step_seconds(run: Run) -> float:
    """Return the median latency of the steps with the most tokens, which fill the budget."""
    most = max(step.num_tokens for step in run.steps)
    return median(step.finish - step.scheduled for step in run.steps if step.num_tokens == most)


def rows_of_axes() -> list[list[Exact | None]]:
    """List the post's figures, and where to find each of their axes here."""
    here = {
        "time": "how long the device is busy is under executors; a trace of CUDA streams needs a GPU",
        "requests/s": "both axes for each budget under the sweep; what doubles, and who gains, under executors",
    }
    return [
        [row.figure, row.model if isinstance(row.model, str) else None, row.x, row.y, row.shows, here[row.x]]
        for row in post_table("003", "figures").itertuples()
    ]
