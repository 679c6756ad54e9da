"""Post 003, tuning the decoding of wde, on the finished engine: its times, its sweep over budgets, its executors."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch

from roseinfer.profiling import Machine, measure_machine
from roseinfer.profiling.data_sheets import data_sheet
from roseinfer.profiling.floors import step_terms

from ..data import COMPUTED, Source, post_facts, post_table
from ..report.content import Exact, PostReport, Time
from ..report.setting import Setting
from ..report.template import Values
from . import budgets, executors, host, times


def reproduce(setting: Setting) -> PostReport:
    about = post_facts("003")
    setting.say("timestamps of a few requests")
    times_section = times.section(setting)
    setting.say("rates of this machine")
    machine = measure_machine(setting.device, getattr(torch, setting.dtype))
    sections = [
        times_section,
        ratio_section(about, machine),
        budgets.section(about, setting),
        host.section(setting, machine),
        executors.section(about, setting),
        {"figures": budgets.rows_of_axes()},
    ]
    arguments = {"models": [config.model for config in host.engines(setting)]}
    return setting.report("003", arguments, sections, {"too_large": host.too_large(setting)})


def ratio_section(about: Mapping[str, Any], machine: Machine) -> Values:
    printed, ratio = about["flop_to_byte"], 1e12 * about["tflops"] / (1e9 * about["read_gb_per_s"])
    sheet = data_sheet(budgets.CARD)
    ratios = {
        f"{budgets.CARD}, as the post has it": ratio,
        f"{budgets.CARD}, tensor cores in fp16": sheet["fp16_flops_per_s"] / sheet["read_bytes_per_s"],
        f"here: {machine.name}": machine.flops_per_s / machine.read_bytes_per_s,
    }
    return {
        "times": [
            Time(
                "operations for each byte read",
                "FLOP/byte",
                round(ratio, 2),
                list(ratios.values())[-1],
                source=Source(COMPUTED, f"its two rates; it rounds them to {printed}"),
            ),
        ],
        "ratios": [[name, f"{r:.1f}", *(ceil(r * width / 2) for width in (4, 2, 1))] for name, r in ratios.items()],
        "readings": reading_rows(about),
    }


def reading_rows(about: Mapping[str, Any]) -> list[list[Exact]]:
    """Compute the limit of speed that the post names, at which a step only reads the model once."""
    rows: list[list[Exact]] = []
    for row in post_table("003", "steps").itertuples():
        in_16_bits = step_terms(budgets.SHAPES[row.model], torch.float16).weight_bytes
        gb = in_16_bits * {"fp8": 1, "bf16": 2}[row.dtype] / 2 / 1e9
        ms = 1e3 * gb / about["read_gb_per_s"]
        rows.append([f"{row.model} {row.dtype}", round(gb, 2), round(ms, 2), row.step_ms, f"{ms / row.step_ms:.0%}"])
    return rows
