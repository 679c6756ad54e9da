"""contest: servers on the same weights, under the same load, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.arguments import each_once, require_count, require_known, require_positive
from roseinfer.arrivals import Range
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable
from roseinfer.models import load_model
from roseinfer.profiling.progress import OnProgress, RunProgress

from ..contenders import ContenderFailed
from ..interleave import phase_of, turns
from ..provenance import describe_host, where
from ..verdict import explanation, ratio_text, runs_text, spread, verdict
from .client import COMPLETE, Outcome, Target, load
from .plan import Planned, plan_of
from .result import DEFINITIONS, MS, Limits, arrivals_text, range_text, row_of
from .servers import PRECISIONS, SERVERS, ContestSetting, started, why_no_llama_server

FIGURES = ("tokens_per_second", "goodput")
TIMES = {"ttft": ("p50", "p99"), "itl": ("p50", "p99")}


def contest(
    model: str = "random:gpt2",
    *,
    contenders: List[str] = SERVERS,
    rate: float = 10.0,
    seconds: float = 10.0,
    clients: int | None = None,
    slots: int = 8,
    precision: str = "float32",
    prompt_lens: Range = (32, 32),
    output_lens: Range = (64, 64),
    ttft_ms: float = 500.0,
    itl_ms: float = 50.0,
    repeats: int = 3,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> ContestResult:
    """Load the servers in turn with rate * seconds requests each. Every repeat has new prompts, the same for each.

    clients: None for an open loop at `rate`; a number for a closed loop of so many. slots: requests that a server runs
    at a time. Raises ValueError for a bad value, and where `make peers` has not been run; ContenderFailed for a server
    that does not start, or whose answers do not have the tokens that were asked for.
    """
    for name in each_once("contenders", contenders):
        require_known("contenders", name, SERVERS)
    require_known("precision", precision, PRECISIONS)
    require_positive("rate", rate)
    require_positive("seconds", seconds)
    require_count("slots", slots, at_least=1)
    require_count("repeats", repeats, at_least=1)
    if clients is not None:
        require_count("clients", clients, at_least=1)
    limits = Limits(ttft_ms, itl_ms)
    if "llama-server" in contenders and (reason := why_no_llama_server()):
        raise ValueError(reason)
    loaded = load_model(model)

    def plan(repeat: int) -> list[Planned]:
        return plan_of(
            rate,
            seconds,
            vocab_size=loaded.config.vocab_size,
            prompt_lens=prompt_lens,
            output_lens=output_lens,
            seed=seed + 1 + repeat,
        )

    setting = ContestSetting(model, precision, slots, prompt_lens[1] + output_lens[1], len(plan(0)))
    samples = []
    with started(contenders, setting, loaded) as targets:
        rounds = list(turns(list(contenders), repeats, warmup=1))
        for done, (repeat, _, name) in enumerate(rounds):
            if on_progress:
                on_progress(RunProgress(phase_of(repeat, repeats), name, runs_done=done, runs_total=len(rounds)))
            row = loaded_row(name, targets[name], plan(repeat), clients, limits)
            if repeat >= 0:
                samples.append({"name": name, "repeat": repeat} | row)
    arguments = {
        "model": model,
        "precision": precision,
        "rate": rate,
        "seconds": seconds,
        "clients": clients,
        "slots": slots,
        "prompt_len": list(prompt_lens),
        "output_len": list(output_lens),
        "ttft_ms": ttft_ms,
        "itl_ms": itl_ms,
        "repeats": repeats,
        "seed": seed,
    }
    return ContestResult.of(list(contenders), samples, arguments)


def loaded_row(name: str, target: Target, plan: List[Planned], clients: int | None, limits: Limits) -> dict[str, Any]:
    """Load a server once. Raises ContenderFailed for an answer that failed, or has other than the tokens asked for."""
    outcomes = asyncio.run(load(target, plan, clients=clients))
    for sent, one in zip(plan, outcomes, strict=True):
        check_answer(name, sent, one)
    return row_of(plan, outcomes, limits)


def check_answer(name: str, sent: Planned, one: Outcome) -> None:
    if one.how != COMPLETE:
        raise ContenderFailed(f"{name}: a request {one.how} ({one.error or f'status {one.status}'})")
    if one.num_tokens != sent.max_tokens:
        raise ContenderFailed(f"{name} gave {one.num_tokens} tokens, asked were {sent.max_tokens}")


@dataclass(frozen=True, kw_only=True)
class ContestResult(MachineResult):
    """rows: one for each server, medians over its runs. samples: a row of each run."""

    SHORT: ClassVar = ("name", *FIGURES, "ttft_p50", "itl_p50")

    definitions: dict[str, str]

    @classmethod
    def of(cls, names: List[str], samples: list[dict[str, Any]], arguments: dict[str, Any]) -> ContestResult:
        rows = [contest_row(name, [one for one in samples if one["name"] == name]) for name in names]
        host = describe_host(torch.device("cpu"))
        return cls(arguments=arguments, rows=rows, samples=samples, definitions=DEFINITIONS, **host)

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        columns = [Column("server", str), Column("requests", "{:,}".format)]
        columns += [Column(title, "{:,.1f}".format) for title in ("tok/s", "good req/s")]
        columns += [
            Column(f"{time} {stat}", "{:,.1f}".format) for time in ("TTFT", "ITL") for stat in ("p50 ms", "p99 ms")
        ]
        keys = ["requests", *FIGURES, *(f"{time}_{stat}" for time, stats in TIMES.items() for stat in stats)]
        factors = dict.fromkeys(keys[3:], MS)
        rows = [
            [row["name"], *(None if row[key] is None else factors.get(key, 1) * row[key] for key in keys)]
            for row in self.rows
        ]
        yield TextTable.of(columns, rows, missing="-").text(width)

    def notes(self) -> list[str]:
        a = self.arguments
        requests = f"{runs_text(a['repeats'])} of {self.rows[0]['requests']} requests"
        notes = [
            f"{a['model']} in {a['precision']}, {requests}: {arrivals_text(a)}; prompts of "
            f"{range_text(a['prompt_len'])} tokens, outputs of {range_text(a['output_len'])}; {a['slots']} run at a "
            f"time. {where(self)}.",
            f"Good: TTFT within {a['ttft_ms']:g} ms and TPOT within {a['itl_ms']:g} ms.",
        ]
        if len(self.rows) > 1:
            notes += [self.ratio(figure) for figure in FIGURES]
            notes.append(explanation(a["repeats"]))
        return notes

    def ratio(self, figure: str) -> str:
        """Compare the first server with the second one in a sentence."""
        first, second = self.rows
        runs = {row["name"]: [one[figure] for one in self.samples if one["name"] == row["name"]] for row in self.rows}
        name = "tokens per second" if figure == "tokens_per_second" else "good requests per second"
        if not second[figure]:
            return f"{first['name']} over {second['name']}, {name}: no ratio, as {second['name']} has none."
        said = verdict(runs[second["name"]], runs[first["name"]], "more", "fewer")
        ratio = ratio_text(first[figure] / second[figure], said)
        return f"{first['name']} over {second['name']}, {name}: {ratio} ({said})."


def contest_row(name: str, samples: List[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the row of a server: medians over its runs."""
    row: dict[str, Any] = {"name": name, "requests": samples[0]["requests"]}
    for figure in FIGURES:
        row |= spread(figure, [one[figure] for one in samples])
    for time, stats in TIMES.items():
        for stat in stats:
            found = [one[time][stat] for one in samples if one[time]]
            row[f"{time}_{stat}"] = median(found) if found else None
    return row
