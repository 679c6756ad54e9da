"""Post 001 beside what was measured here: tokens a second, and what a step time says that the batch does not change."""

from __future__ import annotations

from statistics import median

import torch

from roseinfer.bench.settings import HF_NAME
from roseinfer.planning.sizes import EngineSizes
from roseinfer.profiling import Machine, decode_floor
from roseinfer.profiling.data_sheets import data_sheet

from ..data import COMPUTED, Source, post_facts, post_table
from ..report.content import Grid, Time
from ..report.template import Values
from .measure import Batch, Measurements, by_batch, tokens_per_second


def throughput(m: Measurements, theirs: EngineSizes) -> Values:
    """Compare tokens a second with transformers', and check that a GPU is saturated. theirs: of the post's engine."""
    few, some, many = m.batches[0], m.batches[-2], m.batches[-1]
    return {
        "few": few.size,
        "some": some.size,
        "many": many.size,
        "num_runs": len(few.runs),
        "stage": m.stage,
        "growth": f"{many.step_ms / few.step_ms:.2f}",
        "times": [*map(_speed, m.batches), *_speedups(m), *_beside_hf(m), *_reading(m, theirs)],
        "runs": _runs(m),
        "post_model": theirs.config.model,
        "card": _card(),
        "on_card": _on_the_posts_card(m, theirs),
        "samples": {"runs": [run for b in m.batches for run in b.runs] + m.hf_runs, "machine": m.machine.samples},
    }


def _speed(batch: Batch) -> Time:
    post = by_batch("throughput").loc[batch.size, "tokens_per_second"]
    here = median(tokens_per_second(batch.runs))
    return Time(f"batch {batch.size}", "tok/s", post, here, batch.size / batch.floor.seconds)


def _speedups(m: Measurements) -> list[Time]:
    here = {batch.size: median(tokens_per_second(batch.runs)) for batch in m.batches}
    return [
        Time(f"batch {s['to']} over batch {s['from']}", "times", s["times"], here[s["to"]] / here[s["from"]])
        for s in post_facts("001")["speedups"]
    ]


def _beside_hf(m: Measurements) -> list[Time]:
    largest, steps = m.batches[-1], post_table("001", "step_time").set_index("engine")
    at, posted = f"batch {largest.size}", by_batch("throughput").loc[largest.size, "hf_tokens_per_second"]
    here = median(tokens_per_second(m.hf_runs)) if m.hf_runs else None
    share = 100 * median(tokens_per_second(largest.runs)) / here if here else None
    step = 1e3 * largest.size / here if here else None
    posted_share = 100 * post_facts("001")["hf_share"]["vectorized_gather"]
    return [
        Time(f"{HF_NAME}, {at}", "tok/s", posted, here, largest.size / largest.floor.seconds),
        Time(f"step of {HF_NAME}, {at}", "ms/step", steps.loc["HF", "ms_per_step"], step, 1e3 * largest.floor.seconds),
        Time(f"{at} as a share of {HF_NAME}", "%", posted_share, share),
    ]


def _reading(m: Measurements, theirs: EngineSizes) -> list[Time]:
    """Compute the time to read the weights, and how many times as long the forward takes."""
    rate, rate_here = data_sheet(_card())["read_bytes_per_s"], m.machine.read_bytes_per_s
    all_weights, all_here = 1e3 * theirs.loaded_bytes / rate, 1e3 * m.sizes.loaded_bytes / rate_here
    needed = 1e3 * decode_floor(theirs.shape, [1], torch.float16).weight_bytes / rate
    needed_here = 1e3 * m.batches[0].floor.weight_bytes / rate_here
    read = Source(COMPUTED, f"the weights of {theirs.config.model} in float16, at the rate of its card's data sheet")
    over = Source(COMPUTED, "its model_forward over that reading")
    times = [
        Time("reading all weights once", "ms", round(all_weights, 2), all_here, source=read),
        # Of a token embedding that is not the lm_head as well, a step reads a few rows.
        Time("reading those that a step needs", "ms", round(needed, 2), needed_here, source=read),
    ]
    for batch in m.batches:
        post = by_batch("phases").loc[batch.size, "forward_ms"] / needed
        here = median(batch.labelled["forward"]) / needed_here
        what = f"model_forward over that reading, batch {batch.size}"
        times.append(Time(what, "times", round(post, 2), here, source=over))
    return times


def _runs(m: Measurements) -> Grid:
    runs = {**{f"{m.stage}, batch {b.size}": b.runs for b in m.batches}, HF_NAME: m.hf_runs}
    speeds = {name: tokens_per_second(of_name) for name, of_name in runs.items()}
    return Grid.of_runs("engine", speeds, decimals=1)


def _on_the_posts_card(m: Measurements, theirs: EngineSizes) -> list[list[float]]:
    sheet = data_sheet(_card())
    card = Machine(_card(), "cuda", torch.float16, sheet["read_bytes_per_s"], sheet["fp16_flops_per_s"], samples={})
    rows = []
    for batch in m.batches:
        floor = decode_floor(theirs.shape, [m.prompt_len] * batch.size, card.dtype)
        reading = 1e3 * (floor.weight_bytes + floor.kv_bytes) / card.read_bytes_per_s
        arithmetic = 1e3 * floor.flops / card.flops_per_s
        forward = float(by_batch("phases").loc[batch.size, "forward_ms"])
        rows.append([batch.size, round(reading, 2), round(arithmetic, 2), forward])
    return rows


def _card() -> str:
    return post_facts("001")["hardware"].split(",")[0]
