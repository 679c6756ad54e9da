"""loaded and contest: a load on one server, and on several in turn, from the settings to the result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from roseinfer.models import load_model
from roseinfer.profiling.progress import OnProgress, RunProgress

from ..contenders import ContenderFailed
from ..interleave import race
from ..provenance import describe_host
from ..settings import SERVERS, Serve
from .client import COMPLETE, Outcome, Target, ask_models, load
from .plan import Planned, plan_of
from .result import ContestResult, Limits, ServingResult, contest_rows, row_of
from .server_memory import watched
from .servers import started, why_no_llama_server
from .verify import verify


def loaded(setting: Serve, on_progress: OnProgress | None = None) -> ServingResult:
    """Load the one server of the setting.

    Raises ValueError for a bad value and where no server answers, TokensDiffer for wrong answers.
    """
    url = setting.address
    found = asyncio.run(ask_models(url, setting.api_key))
    vocab_size = setting.vocab_size or found.get("vocab_size")
    if vocab_size is None:
        raise ValueError(
            f"vocab_size must be given: {url} does not tell that of {found.get('id')}. If it is still "
            "loading the model, wait until /health answers"
        )
    plan = planned(setting, vocab_size)
    target = Target(url, setting.model or str(found["id"]), setting.api_key, setting.stream)
    num_ended = 0

    def on_end(outcome: Outcome) -> None:
        nonlocal num_ended
        num_ended += 1
        if on_progress:
            on_progress(RunProgress("load", url, runs_done=num_ended, runs_total=len(plan)))

    outcomes, memory = asyncio.run(watched(url, load(target, plan, on_end, setting.clients)))
    arguments = setting.record() | {"url": url, "model": target.model}
    return ServingResult(
        arguments=arguments,
        **describe_host(torch.device("cpu")),
        rows=[row_of(plan, outcomes, Limits(setting.ttft_ms, setting.itl_ms))],
        samples=[{name: value for name, value in asdict(one).items() if name != "text"} for one in outcomes],
        tokens=verify(setting.verify, plan, outcomes) if setting.verify else None,
        memory=memory,
    )


def planned(setting: Serve, vocab_size: int, repeat: int = 0) -> list[Planned]:
    """Plan a load. Each repeat of it has other lengths and prompts."""
    return plan_of(
        setting.rate,
        setting.seconds,
        vocab_size=vocab_size,
        prompt_lens=setting.prompt_len,
        output_lens=setting.output_len,
        cancelled=setting.cancelled,
        malformed=setting.malformed,
        seed=setting.seed + repeat,
    )


def contest(setting: Serve, on_progress: OnProgress | None = None) -> ContestResult:
    """Load the setting's servers in turn with rate * seconds requests each. Every repeat has new prompts, for all.

    Raises ValueError where `make peers` has not been run; ContenderFailed for a server that does not start, or whose
    answers do not have the tokens that were asked for.
    """
    repeats, model = setting.repeats, setting.model or "random:gpt2"
    limits = Limits(setting.ttft_ms, setting.itl_ms)
    if "llama-server" in (setting.contenders or SERVERS) and (reason := why_no_llama_server()):
        raise ValueError(reason)
    loaded = load_model(model)
    plans = [planned(setting, loaded.config.vocab_size, repeat) for repeat in range(1 + repeats)]
    with started(setting, model, loaded, len(plans[0])) as targets:
        runs = {
            name: partial(loaded_row, name, targets[name], iter(plans), setting.clients, limits) for name in targets
        }
        taken = race(runs, repeats, on_progress)
    samples = [{"name": name, "repeat": i} | row for name, rows in taken.items() for i, row in enumerate(rows)]
    return ContestResult(
        arguments=setting.record() | {"model": model},
        **describe_host(torch.device("cpu")),
        rows=contest_rows(samples),
        samples=samples,
    )


def loaded_row(
    name: str, target: Target, plans: Iterator[Sequence[Planned]], clients: int | None, limits: Limits
) -> dict[str, Any]:
    """Load a server with the next plan. Raises ContenderFailed for an answer that failed or has the wrong length."""
    plan = next(plans)
    outcomes = asyncio.run(load(target, plan, clients=clients))
    for sent, one in zip(plan, outcomes, strict=True):
        check_answer(name, sent, one)
    return row_of(plan, outcomes, limits)


def check_answer(name: str, sent: Planned, one: Outcome) -> None:
    if one.how != COMPLETE:
        raise ContenderFailed(f"{name}: a request {one.how} ({one.error or f'status {one.status}'})")
    if one.num_tokens != sent.max_tokens:
        raise ContenderFailed(f"{name} gave {one.num_tokens} tokens, asked were {sent.max_tokens}")
