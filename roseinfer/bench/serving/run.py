"""loaded: a load from its settings to its result."""

from __future__ import annotations

import asyncio

import torch

from roseinfer.profiling.progress import OnProgress, RunProgress

from ..provenance import describe_host
from ..settings import Serve
from .client import Outcome, Target, ask_models, load
from .plan import plan_of
from .result import Limits, ServingResult
from .server_memory import watched
from .verify import verify as verified


def loaded(setting: Serve, on_progress: OnProgress | None = None) -> ServingResult:
    """Load the one server of the setting.

    Raises ValueError for a bad value and where no server answers, TokensDiffer for wrong answers.
    """
    limits, url = Limits(setting.ttft_ms, setting.itl_ms), setting.address
    found = asyncio.run(ask_models(url, setting.api_key))
    vocab_size = setting.vocab_size or found.get("vocab_size")
    if vocab_size is None:
        raise ValueError(
            f"vocab_size must be given: {url} does not tell that of {found.get('id')}. If it is still "
            "loading the model, wait until /health answers"
        )
    plan = plan_of(
        setting.rate,
        setting.seconds,
        vocab_size=vocab_size,
        prompt_lens=setting.prompt_len,
        output_lens=setting.output_len,
        cancelled=setting.cancelled,
        malformed=setting.malformed,
        seed=setting.seed,
    )
    target = Target(url, setting.model or str(found["id"]), setting.api_key, setting.stream)
    num_ended = 0

    def on_end(outcome: Outcome) -> None:
        nonlocal num_ended
        num_ended += 1
        if on_progress:
            on_progress(RunProgress("load", url, runs_done=num_ended, runs_total=len(plan)))

    outcomes, memory = asyncio.run(watched(url, load(target, plan, on_end, setting.clients)))
    arguments = setting.record() | {"url": url, "model": target.model}
    tokens = verified(setting.verify, plan, outcomes) if setting.verify else None
    host = describe_host(torch.device("cpu"))
    return ServingResult.of(plan, outcomes, limits, arguments, tokens, host, memory)
