"""contest: servers on the same weights, under the same load, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.models import load_model
from roseinfer.profiling.progress import OnProgress, RunProgress

from ..contenders import ContenderFailed
from ..interleave import phase_of, turns
from ..provenance import describe_host, where
from ..settings import SERVERS, Serve
from ..verdict import explanation, ratio_text, runs_text, spread, verdict
from .client import COMPLETE, Outcome, Target, load
from .plan import Planned, plan_of
from .result import DEFINITIONS, MS, Limits, arrivals_text, range_text, row_of
from .servers import ContestSetting, started, why_no_llama_server

FIGURES = ("tokens_per_second", "goodput")
TIMES = {"ttft": ("p50", "p99"), "itl": ("p50", "p99")}


def _ms(seconds: float) -> str:
    return f"{MS * seconds:,.1f}"


def contest(setting: Serve, on_progress: OnProgress | None = None) -> ContestResult:
    """Load the setting's servers in turn with rate * seconds requests each. Every repeat has new prompts, for all.

    Raises ValueError where `make peers` has not been run; ContenderFailed for a server that does not start, or whose
    answers do not have the tokens that were asked for.
    """
    contenders, repeats, model = setting.contenders or SERVERS, setting.repeats, setting.model or "random:gpt2"
    limits = Limits(setting.ttft_ms, setting.itl_ms)
    if "llama-server" in contenders and (reason := why_no_llama_server()):
        raise ValueError(reason)
    loaded = load_model(model)

    def plan(repeat: int) -> list[Planned]:
        return plan_of(
            setting.rate,
            setting.seconds,
            vocab_size=loaded.config.vocab_size,
            prompt_lens=setting.prompt_len,
            output_lens=setting.output_len,
            seed=setting.seed + 1 + repeat,
        )

    longest = setting.prompt_len[1] + setting.output_len[1]
    shared = ContestSetting(model, setting.precision, setting.slots, longest, len(plan(0)))
    samples = []
    with started(contenders, shared, loaded) as targets:
        rounds = list(turns(list(contenders), repeats, warmup=1))
        for done, (repeat, _, name) in enumerate(rounds):
            if on_progress:
                on_progress(RunProgress(phase_of(repeat, repeats), name, runs_done=done, runs_total=len(rounds)))
            row = loaded_row(name, targets[name], plan(repeat), setting.clients, limits)
            if repeat >= 0:
                samples.append({"name": name, "repeat": repeat} | row)
    return ContestResult.of(list(contenders), samples, setting.record() | {"model": model})


def loaded_row(
    name: str, target: Target, plan: Sequence[Planned], clients: int | None, limits: Limits
) -> dict[str, Any]:
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
    MISSING: ClassVar = "-"
    COLUMNS: ClassVar = (
        Column("server", of="name"),
        Column("requests", "{:,}".format, of="requests"),
        Column("tok/s", "{:,.1f}".format, of="tokens_per_second"),
        Column("good req/s", "{:,.1f}".format, of="goodput"),
        *(
            Column(f"{time.upper()} {stat} ms", _ms, of=f"{time}_{stat}")
            for time, stats in TIMES.items()
            for stat in stats
        ),
    )

    definitions: dict[str, str]

    @classmethod
    def of(cls, names: Sequence[str], samples: list[dict[str, Any]], arguments: dict[str, Any]) -> ContestResult:
        rows = [contest_row(name, [one for one in samples if one["name"] == name]) for name in names]
        host = describe_host(torch.device("cpu"))
        return cls(arguments=arguments, rows=rows, samples=samples, definitions=DEFINITIONS, **host)

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


def contest_row(name: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the row of a server: medians over its runs."""
    row: dict[str, Any] = {"name": name, "requests": samples[0]["requests"]}
    for figure in FIGURES:
        row |= spread(figure, [one[figure] for one in samples])
    for time, stats in TIMES.items():
        for stat in stats:
            found = [one[time][stat] for one in samples if one[time]]
            row[f"{time}_{stat}"] = median(found) if found else None
    return row
