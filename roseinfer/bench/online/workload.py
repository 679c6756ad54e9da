"""Workload: how many requests there are, how long they are, and when they come."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roseinfer.arguments import require_count
from roseinfer.arrivals import (
    MOST_REQUESTS,
    Arrival,
    Range,
    all_at_second_0,
    poisson,
    read_trace,
    require_order,
    require_range,
)
from roseinfer.arrivals import bursts as draw_bursts
from roseinfer.models import Model

from ..ladder import mixed_prompts

Work = List[tuple[Arrival, list[int]]]  # each with its prompt


@dataclass(frozen=True)
class Workload:
    """Requests with the lengths of post 003's sweep, unless others are given.

    prompt_lens, output_lens: least and most, each length as likely. prefix_len: tokens that all prompts begin with,
    before their own. burst: how many come together. trace: a file that roseinfer.arrivals reads, with its own times,
    lengths and number of requests. Raises ValueError for a bad value.
    """

    num_requests: int = 1000
    prompt_lens: Range = (256, 256)
    output_lens: Range = (16, 16)
    prefix_len: int = 0
    burst: int = 1
    seed: int = 0
    trace: Path | None = None

    def __post_init__(self) -> None:
        require_count("num_requests", self.num_requests, at_least=1, at_most=MOST_REQUESTS)
        require_count("burst", self.burst, at_least=1)
        for argument in ("prefix_len", "seed"):
            require_count(argument, getattr(self, argument), at_least=0)
        for argument in ("prompt_lens", "output_lens"):
            require_range(argument, getattr(self, argument))

    def arrivals(self, rate: float | None) -> list[Arrival]:
        """Return the arrivals at `rate` requests a second, None for all at once. A trace has its own times.

        The lengths do not depend on the rate. Raises ValueError for a rate that is not above 0 and for a bad trace,
        naming its line; FileNotFoundError for a trace that is not there.
        """
        if self.trace is not None:
            arrivals = read_trace(self.trace)
            require_order(arrivals)
            return arrivals
        lengths = {"prompt_lens": self.prompt_lens, "output_lens": self.output_lens, "prefix_len": self.prefix_len}
        given: dict[str, Any] = lengths | {"seed": self.seed}
        each_rate = 1.0 if rate is None else rate
        if self.burst > 1:
            arrivals = draw_bursts(self.num_requests, each_rate, self.burst, **given)
        else:
            arrivals = poisson(self.num_requests, each_rate, **given)
        return arrivals if rate is not None else all_at_second_0(arrivals)

    def work(self, model: Model, arrivals: List[Arrival]) -> Work:
        """Give each arrival a prompt of random ids; prompts with the same prefix begin with the same ones."""
        prompts = mixed_prompts(model, [arrival.prompt_len for arrival in arrivals], self.seed)
        longest: dict[int, int] = {}
        for text, n in (arrival.prefix for arrival in arrivals if arrival.prefix):
            longest[text] = max(n, longest.get(text, 0))
        texts = dict(zip(longest, mixed_prompts(model, list(longest.values()), self.seed + 1), strict=True))
        for arrival, prompt in zip(arrivals, prompts, strict=True):
            if arrival.prefix:
                text, n = arrival.prefix
                prompt[:n] = texts[text][:n]
        return list(zip(arrivals, prompts, strict=True))
