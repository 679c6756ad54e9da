"""Post 003, tuning the decoding of wde: its times, the most that hiding host work can gain, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch

from roseinfer.engine.config import EngineConfig
from roseinfer.profiling import Machine, measure_machine
from roseinfer.profiling.data_sheets import data_sheet

from ..data import COMPUTED, KINDS, Source, post_facts, post_table, source_of
from ..report.content import Grid, NotRun, PostReport, Section, Time, judge
from ..report.setting import Setting
from . import host_share as host
from . import times
from .batches_in_flight import take_turns

CARD = "RTX 4090"
BATCH, REQUESTS, TOKENS = 8, 16, 6  # of the counted batches in flight


def engines(setting: Setting) -> list[EngineConfig]:
    """One for the timestamps, then one a model for the host's share: a dense and a paged stage build it each."""
    return [times.engine(setting), *host.engines(setting)]


def reproduce(setting: Setting) -> PostReport:
    about = post_facts("003")
    setting.say("timestamps of a few requests")
    times_section = times.section(setting)
    setting.say("rates of this machine")
    machine = measure_machine(setting.device, getattr(torch, setting.dtype))
    host_section = host.section(setting, machine)
    arguments = {
        "models": [config.model for config in host.engines(setting)],
        "stages": [stage.name for stage in host.stages(setting)],
    }
    sections = [times_section, ratio_section(about, machine), host_section, in_flight_section(about)]
    return setting.report("003", arguments, sections, [*host.left_out(setting), *not_run(about)])


def ratio_section(about: Mapping[str, Any], machine: Machine) -> Section:
    printed, ratio = about["flop_to_byte"], 1e12 * about["tflops"] / (1e9 * about["read_gb_per_s"])
    sheet = data_sheet(CARD)
    ratios = {
        f"{CARD}, as the post has it": ratio,
        f"{CARD}, tensor cores in fp16": sheet["fp16_flops_per_s"] / sheet["read_bytes_per_s"],
        f"here: {machine.name}": machine.flops_per_s / machine.read_bytes_per_s,
    }
    return Section(
        "Operations for each byte read",
        [
            f"The post's {about['tflops']} TFLOPS over {about['read_gb_per_s']:,} GB/s say how many operations the "
            "card can do while it reads one byte. A decode step does two for each weight and request, so a small "
            "batch is bound by reading, as the post says.",
            "The table turns that round: from which batch on a step's matrix products take as long as reading the "
            "weights, if they ran at the row's rate. The KV cache is left out; reading it is work that no larger batch "
            "shares.",
            f"{about['tflops']} TFLOPS is the card's rate without tensor cores. With them the products of an fp16 "
            "model are faster, and the batch may be larger still.",
        ],
        facts=[
            judge(
                "operations to bytes, from the post's two rates",
                printed, f"{ratio:.0f}:1", why="operations a second over bytes a second",
            )
        ],
        times=[
            Time("operations for each byte read", "FLOP/byte", round(ratio, 2), list(ratios.values())[-1],
                 source=Source(COMPUTED, f"its two rates; it rounds them to {printed}")),
        ],
        grids=[
            Grid(
                "Batch from which the products take as long as reading the weights",
                ["rates", "FLOP/byte", "32-bit weights", "16-bit weights", "8-bit weights"],
                [[name, f"{r:.1f}", *(ceil(r * width / 2) for width in (4, 2, 1))] for name, r in ratios.items()],
            )
        ],
    )  # fmt: skip


def in_flight_section(about: Mapping[str, Any]) -> Section:
    gaps, rows = {}, []
    for in_flight in (1, 2):
        requests = take_turns(REQUESTS, TOKENS, BATCH, in_flight)
        steps = max(request.made_at[-1] for request in requests)
        waited = sum(request.made_at[0] > in_flight for request in requests)
        gaps[in_flight] = max(gap for request in requests for gap in request.gaps)
        rows.append([in_flight, steps, gaps[in_flight], max(request.latency for request in requests), waited])
    factor = about["latency_factor_two_in_flight"]
    kind = KINDS[source_of(about, "executors.batches_in_flight").kind]
    titles = {"batches_in_flight": f"batches in flight ({kind})", "overlaps": "what overlaps"}
    return Section(
        "What two batches in flight cost",
        [
            "Asynchronous scheduling prepares one batch while the other is on the device. The post says that each "
            f"request's generation latency becomes {factor} times as long. Counted in steps of the device, which runs "
            "one batch at a time, that is what comes out, and the number of steps in all stays the same.",
            "So the price is paid in full, while hiding host work gains at most what the section above says. Twice as "
            "many requests run, each at half the pace; those at the end of the queue start earlier for it. The post's "
            "several CUDA streams also let two batches compute at once, which this count leaves out.",
            "What the post found of its four ways to run the steps is in the last table. They need a GPU with streams, "
            "and are not run here.",
        ],
        facts=[
            judge(
                "device steps from a token to the next, two batches in flight",
                factor * gaps[1], gaps[2], rule=2 * gaps[1], why="two batches take turns",
                source=Source(COMPUTED, f"{factor} times as long, as it says, as the {gaps[1]} step of one batch"),
            )
        ],
        grids=[
            Grid(
                f"{REQUESTS} requests of {TOKENS} tokens in batches of {BATCH}, in steps of the device",
                ["batches in flight", "steps in all", "token to token", "a request, first to last", "requests queued"],
                rows,
            ),
            Grid.of("The post's executors", post_table("003", "executors").rename(columns=titles)),
        ],
    )  # fmt: skip


def not_run(about: Mapping[str, Any]) -> list[NotRun]:
    return [
        NotRun("asynchronous executors, their traces, and what they gain",
               f"a GPU with streams (the post's: {about['hardware']}), and a scheduler that runs ahead"),
        NotRun("throughput and latency for several max_num_batched_tokens", "chunked prefill under a token budget"),
        NotRun(f"the comparison with {' and '.join(about['compared_with'])}",
               f"those versions, and the post's {about['hardware']}"),
        NotRun(f"the post's models ({about['model']})", "fp8 weights and a GPU that multiplies them"),
    ]  # fmt: skip
