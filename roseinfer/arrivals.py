"""Arrivals: when requests come, and how long their prompts and outputs are. Seeded, or from a file.

A trace is a file of JSON lines, in order of time:
    {"seconds": 0.25, "prompt_len": 256, "output_len": 16}
    {"seconds": 0.5, "prompt_len": 300, "output_len": 8, "prefix": [3, 128]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

from roseinfer.arguments import is_integer, require_count, require_not_negative, require_positive, unknown_name

Range = tuple[int, int]
MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes `seconds` after the start: tokens of its prompt, and of its output, which is not cut short.

    prefix: (text, tokens). Requests with the same text, an integer, begin with the same tokens, that many.
    Raises ValueError for a value out of range.
    """

    seconds: float
    prompt_len: int
    output_len: int
    prefix: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require_not_negative("seconds", self.seconds)
        require_count("prompt_len", self.prompt_len, at_least=1)
        require_count("output_len", self.output_len, at_least=1)
        if self.prefix is None:
            return
        if not isinstance(self.prefix, tuple) or len(self.prefix) != 2:
            raise ValueError(f"prefix must be a text and how many tokens of it, two integers, got {self.prefix!r}")
        text, tokens = self.prefix
        require_count("the text of prefix", text, at_least=0)
        require_count("the tokens of prefix", tokens, at_least=1)
        if tokens > self.prompt_len:
            raise ValueError(f"prefix has {tokens} tokens, and the prompt only prompt_len={self.prompt_len}")


def at_once(
    num_requests: int,
    *,
    prompt_lens: Range,
    output_lens: Range,
    prefix_len: int = 0,
    prefix_groups: int = 1,
    seed: int = 0,
) -> list[Arrival]:
    """Return arrivals that all come at second 0.

    prompt_lens, output_lens: least and most; each number from one to the other is equally likely. prefix_len: tokens
    before each prompt's own ones that it has in common with others, 0 for none. prefix_groups: how many such prefixes
    there are, each as likely; 1: all prompts have the same one.

    Raises ValueError for a count below 1, or a range that is not one.
    """
    require_count("num_requests", num_requests, at_least=1, at_most=MOST_REQUESTS)
    return _sized([0.0] * num_requests, Random(seed), prompt_lens, output_lens, prefix_len, prefix_groups)


def all_at_second_0(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Return the same requests, all at second 0."""
    return [replace(arrival, seconds=0.0) for arrival in arrivals]


def poisson(num_requests: int, rate: float, **sizes: Any) -> list[Arrival]:
    """Return arrivals of a Poisson process, `rate` a second on average. sizes: the keywords of at_once."""
    return bursts(num_requests, rate, 1, **sizes)


def bursts(
    num_requests: int,
    rate: float,
    burst: int,
    *,
    prompt_lens: Range,
    output_lens: Range,
    prefix_len: int = 0,
    prefix_groups: int = 1,
    seed: int = 0,
) -> list[Arrival]:
    """Return arrivals `burst` at a time; the bursts are a Poisson process, with `rate` requests a second on average."""
    require_count("num_requests", num_requests, at_least=1, at_most=MOST_REQUESTS)
    require_positive("rate", rate)
    require_count("burst", burst, at_least=1)
    rng = Random(seed)
    starts = list(accumulate(rng.expovariate(rate / burst) for _ in range(-(-num_requests // burst))))
    seconds = [starts[i // burst] for i in range(num_requests)]
    return _sized(seconds, rng, prompt_lens, output_lens, prefix_len, prefix_groups)


def _sized(
    seconds: list[float], rng: Random, prompt_lens: Range, output_lens: Range, prefix_len: int, prefix_groups: int
) -> list[Arrival]:
    require_range("prompt_lens", prompt_lens)
    require_range("output_lens", output_lens)
    require_count("prefix_len", prefix_len, at_least=0)
    require_count("prefix_groups", prefix_groups, at_least=1)
    lengths = [(prefix_len + rng.randint(*prompt_lens), rng.randint(*output_lens)) for _ in seconds]
    # Drawn after all lengths, so that these are the same whatever the number of groups.
    texts = [rng.randrange(prefix_groups) for _ in seconds] if prefix_groups > 1 else [0] * len(seconds)
    prefixes = [(text, prefix_len) if prefix_len else None for text in texts]
    return [Arrival(at, *sizes, prefix) for at, sizes, prefix in zip(seconds, lengths, prefixes, strict=True)]


def require_range(argument: str, value: Range) -> None:
    """Raise ValueError, naming the argument, unless it is two integers, at least 1 and in order."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(is_integer, value))
    if not is_pair or not 1 <= value[0] <= value[1]:
        raise ValueError(f"{argument} must be the least and the most, integers of at least 1, got {value!r}")


def read_trace(path: Path) -> list[Arrival]:
    """Return the arrivals of a file.

    Raises ValueError that names the line for one that is wrong or out of order, and for a file without any.
    """
    lines = list(_trace_lines(path))
    if not lines:
        raise ValueError(f"{path}: must have at least one arrival, a line of JSON each, got none")
    for (_, before), (number, arrival) in pairwise(lines):
        if arrival.seconds < before.seconds:
            raise ValueError(
                f"{path}, line {number}: seconds={arrival.seconds} is before {before.seconds} of the arrival above, "
                "they must be in order of time"
            )
    return [arrival for _, arrival in lines]


def _trace_lines(path: Path) -> Iterator[tuple[int, Arrival]]:
    names = [field.name for field in fields(Arrival)]
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error})") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError(f'must be an object such as {{"seconds": 0.25, ...}}, got {line.strip()[:40]!r}')
            for name in values:
                if name not in names:
                    raise ValueError(f"unknown field {unknown_name(name, names)}")
            for name in names[:3]:
                if name not in values:
                    raise ValueError(f"{name} is missing")
            prefix = values.get("prefix")
            yield number, Arrival(**values | {"prefix": tuple(prefix) if isinstance(prefix, list) else prefix})
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: is not JSON: {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error


def require_order(arrivals: list[Arrival]) -> None:
    """Raise ValueError for no arrivals, and for one that is before its predecessor."""
    if not arrivals:
        raise ValueError("arrivals must be at least one, got none")
    for i, (before, after) in enumerate(pairwise(arrivals), 1):
        if after.seconds < before.seconds:
            raise ValueError(
                f"arrivals[{i}] comes at second {after.seconds}, before arrivals[{i - 1}] at {before.seconds}: they "
                "must be in order of time"
            )
