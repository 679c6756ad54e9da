"""loaded: a load from its settings to its result."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from roseinfer.arguments import require_count, require_positive
from roseinfer.arrivals import Range
from roseinfer.profiling.progress import OnProgress, RunProgress

from ..provenance import describe_host
from .client import Outcome, Target, ask_models, load
from .plan import plan_of
from .result import Limits, ServingResult
from .server_memory import watched
from .verify import verify as verified


def loaded(
    url: str,
    *,
    rate: float = 10.0,
    seconds: float = 10.0,
    model: str | None = None,
    api_key: str | None = None,
    vocab_size: int | None = None,
    prompt_lens: Range = (8, 64),
    output_lens: Range = (16, 64),
    cancelled: float = 0.0,
    malformed: float = 0.0,
    ttft_ms: float = 500.0,
    itl_ms: float = 50.0,
    stream: bool = True,
    clients: int | None = None,
    verify: str | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> ServingResult:
    """Load the server at url. verify: a model's spec, to compare answers with. clients: see load. Others: plan_of.

    Raises ValueError for a bad value and where no server answers, TokensDiffer for wrong answers.
    """
    require_positive("rate", rate)
    require_positive("seconds", seconds)
    if clients is not None:
        require_count("clients", clients, at_least=1)
    limits = Limits(ttft_ms, itl_ms)
    found = asyncio.run(ask_models(url, api_key))
    vocab_size = vocab_size or found.get("vocab_size")
    if vocab_size is None:
        raise ValueError(
            f"vocab_size must be given: {url} does not tell that of {found.get('id')}. If it is still "
            "loading the model, wait until /health answers"
        )
    plan = plan_of(
        rate,
        seconds,
        vocab_size=vocab_size,
        prompt_lens=prompt_lens,
        output_lens=output_lens,
        cancelled=cancelled,
        malformed=malformed,
        seed=seed,
    )
    target = Target(url, model or str(found["id"]), api_key, stream)
    num_ended = 0

    def on_end(outcome: Outcome) -> None:
        nonlocal num_ended
        num_ended += 1
        if on_progress:
            on_progress(RunProgress("load", url, runs_done=num_ended, runs_total=len(plan)))

    outcomes, memory = asyncio.run(watched(url, load(target, plan, on_end, clients)))
    arguments: dict[str, Any] = {
        "url": url,
        "model": target.model,
        "rate": rate,
        "seconds": seconds,
        "prompt_len": list(prompt_lens),
        "output_len": list(output_lens),
        "cancelled": cancelled,
        "malformed": malformed,
        "ttft_ms": ttft_ms,
        "itl_ms": itl_ms,
        "stream": stream,
        "clients": clients,
        "seed": seed,
    }
    tokens = verified(verify, plan, outcomes) if verify else None
    host = describe_host(torch.device("cpu"))
    return ServingResult.of(plan, outcomes, limits, arguments, tokens, host, memory)
