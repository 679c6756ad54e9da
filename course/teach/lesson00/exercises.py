"""Checkers of lesson 00: the size of a cache, the work it saves, and a decode loop of your own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

from torch import Tensor

from roseinfer.arguments import counted
from roseinfer.models import Model, ModelConfig
from roseinfer.reference import reference_generate
from roseinfer.stage import Stage

from ..exercises.drawn import Case, Comparison, Expected, draw, inputs, part, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_counts, explain_tokens
from ..exercises.solutions import solution
from ..exercises.stage_checks import drawn_model
from ..exercises.wrong import Wrong

SHAPE = ModelConfig(
    architecture="gpt2",
    vocab_size=50257,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    intermediate_size=3072,
    max_model_len=1024,
)


KV_BYTES = solution("00.3")


class Cache(NamedTuple):
    """Case of an exercise about bytes: the shape of a model, how many tokens it caches, and the bytes of a value."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    width: int

    @property
    def nbytes(self) -> int:
        return KV_BYTES(self.config, self.tokens, self.width)

    @property
    def config(self) -> ModelConfig:
        return replace(
            SHAPE, num_layers=self.layers, num_heads=self.heads, num_kv_heads=self.kv_heads, head_dim=self.head_dim
        )

    def __str__(self) -> str:
        return (
            f"num_layers={self.layers}, num_heads={self.heads}, num_kv_heads={self.kv_heads}, "
            f"head_dim={self.head_dim}, num_tokens={self.tokens}, bytes_per_value={self.width}"
        )


# 00.3


def draw_cache(rng: Random) -> Cache:
    kv_heads = rng.randint(1, 4)
    heads = kv_heads * rng.randint(1, 3)
    return Cache(rng.randint(1, 7), heads, kv_heads, rng.choice((1, 2, 5)), rng.randint(1, 9), rng.choice((1, 2, 4)))


EDGES = [
    Cache(1, 1, 1, 1, 1, 1),
    Cache(1, 4, 1, 3, 1, 2),
    Cache(1, 6, 2, 3, 0, 4),
    Cache(2, 12, 12, 80, 64, 4),
    Cache(12, 12, 3, 64, 100, 2),
]

SHAPE_MISTAKES: dict[str, Callable[[Cache], float]] = {
    "one of the two tensors is missing: K and V are both kept": lambda c: c.nbytes // 2,
    "that is one layer, the model has num_layers of them": lambda c: c._replace(layers=1).nbytes,
    "those are values, not bytes: each takes bytes_per_value": lambda c: c._replace(width=1).nbytes,
    "a value does not always take so many bytes, bytes_per_value says it": lambda c: c._replace(width=4).nbytes,
    "those are bits": lambda c: c.nbytes * 8,
    "query heads are not cached: count num_kv_heads": lambda c: c._replace(kv_heads=c.heads).nbytes,
    "hidden_size is not what is cached: count KV heads and their head_dim": lambda c: (
        c._replace(kv_heads=1, head_dim=c.config.hidden_size).nbytes
    ),
    "head_dim is a number of its own, not hidden_size // num_heads": lambda c: (
        c._replace(head_dim=c.config.hidden_size // c.heads).nbytes
    ),
    "that is one head, each of num_kv_heads keeps its own": lambda c: c._replace(kv_heads=1).nbytes,
    "a head keeps head_dim values of a token": lambda c: c._replace(head_dim=1).nbytes,
}
TOKEN_MISTAKES: dict[str, Callable[[Cache], float]] = {
    "that is one token, num_tokens of them are cached": lambda c: c._replace(tokens=1).nbytes,
    "that is the model's longest text, num_tokens of them are cached": lambda c: (
        c._replace(tokens=c.config.max_model_len).nbytes
    ),
}

register(
    "00.3",
    Comparison(
        [(cache,) for cache in (*EDGES, *draw(draw_cache))],
        Expected(lambda cache: cache.nbytes, SHAPE_MISTAKES | TOKEN_MISTAKES),
        str,
        lambda answer, cache: answer(cache.config, cache.tokens, cache.width),
    ),
)


# 00.1


without, cached = (part(solution("00.1"), number) for number in range(2))
WORK = {
    "without a cache": Expected(
        without,
        {
            "that is the count with a cache; the pair begins with the one without": cached,
            "the text grows: every step computes the tokens made so far, too": lambda p, n: p * n,
            "the first step computes the prompt alone, no new token is there yet": lambda p, n: without(p, n) + n,
            "the first token costs a pass over the prompt": lambda p, n: without(p, n) - p,
            "that is as long as the text gets; each step computes all of it that is there": lambda p, n: p + n,
            "the prompt is computed in every step, too": lambda p, n: n * (n - 1) // 2,
        },
    ),
    "with a cache": Expected(
        cached,
        {
            "that is the count without a cache; the pair ends with the one with a cache": without,
            "the last token is made, but never computed further": lambda p, n: p + n,
            "the prompt has to be computed too, once, by the prefill": lambda p, n: n,
            "the prompt has to be computed too; its pass gives the first token": lambda p, n: n - 1,
            "each token after the first costs a step of its own": lambda p, n: p,
            "the prompt is computed once; its K and V are kept": lambda p, n: p * n,
        },
    ),
}
EDGES_OF_TEXTS = [(1, 1), (1, 2), (2, 1), (64, 1), (100, 50), (1024, 500)]
TEXTS = [*EDGES_OF_TEXTS, *draw(lambda rng: (rng.randint(2, 20), rng.randint(2, 20)))]

register("00.1", Comparison(TEXTS, WORK, inputs("prompt_len", "new_tokens")))


# 00.2

MOST_NEW = 6


@cache
def _greedy(prompt: tuple[int, ...]) -> list[int]:
    """Return the reference's greedy tokens for a prompt, one token more than any case asks for."""
    return reference_generate(drawn_model(), [list(prompt)], MOST_NEW + 1)[0]


def greedy(prompt: list[int], max_tokens: int) -> list[int]:
    return _greedy(tuple(prompt))[:max_tokens]


LOOP_MISTAKES: dict[str, Callable[[list[int], int], list[int]]] = {
    "only the new tokens are asked for (seq.output_ids), the prompt is not": lambda p, n: p + greedy(p, n),
    "the prefill gives the first one": lambda p, n: greedy(p, n + 1),
    "the prefill's logits give the first one, it is missing": lambda p, n: greedy(p, n + 1)[1:],
    "the prefill's token is not the only one": lambda p, n: greedy(p, 1),
}
GENERATIONS: list[Case] = [
    ([5, 6, 7], 1),
    ([3], 1),
    ([3], 2),
    *[([7] * n, 3) for n in (62, 63, 64, 65, 128)],
    *draw(lambda rng: ([rng.randrange(30) for _ in range(rng.randint(1, 12))], rng.randint(1, MOST_NEW))),
]


def describe_generation(prompt: list[int], max_tokens: int) -> str:
    return f"{f'prompt {prompt}' if len(prompt) < 13 else f'a prompt of {len(prompt)} tokens'}, max_tokens={max_tokens}"


GENERATED = Comparison(GENERATIONS, Expected(greedy, LOOP_MISTAKES, explain_tokens), describe_generation)


@exercise("00.2", GENERATED)
def decode_loop(answer: Callable[[Stage, list[int], int], list[int]], stage_class: type[Stage], model: Model) -> None:
    def run(answer: Callable[..., Any], prompt: list[int], max_tokens: int) -> Any:
        return _run_loop(answer, stage_class(drawn_model(), num_blocks=4), prompt, max_tokens)[0]

    def complaint_of(*case: Any) -> str | None:
        return _run_loop(answer, stage_class(drawn_model(), num_blocks=4), *case)[1]

    GENERATED(answer, run)
    require_all(GENERATIONS, complaint_of, describe_generation)
    prompt, max_tokens = list(range(20, 80)), 9
    got, complaint = _run_loop(answer, stage_class(model, num_blocks=4), prompt, max_tokens)
    if message := explain_tokens(got, reference_generate(model, [prompt], max_tokens)[0]) or complaint:
        raise Wrong(f"on this notebook's model, {describe_generation(prompt, max_tokens)}: {message}")


def _run_loop(answer: Callable[..., Any], stage: Stage, prompt: list[int], max_tokens: int) -> tuple[Any, str | None]:
    """Run a learner's decode loop; return what it gives, and what is wrong with how it got there (None: nothing)."""
    free, calls, given = stage.num_free_blocks, _count_calls(stage), list(prompt)
    got = answer(stage, given, max_tokens)
    complaint = explain_counts(calls, {"prefill": 1, "decode": max_tokens - 1})
    if given != prompt:
        complaint = "the tokens are right, but prompt_ids has changed: it belongs to the caller"
    elif stage.num_free_blocks != free:
        held = counted(free - stage.num_free_blocks, "block", "was/were")
        complaint = f"the tokens are right, but {held} not given back: free it"
    return got, complaint


def _count_calls(stage: Stage) -> Counter[str]:
    """Count from now on how often prefill and decode of this stage are called."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Tensor]:
        method = getattr(stage, name)

        def call(*args: Any, **kwargs: Any) -> Tensor:
            calls[name] += 1
            return method(*args, **kwargs)

        return call

    for name in ("prefill", "decode"):
        setattr(stage, name, counted(name))
    return calls
