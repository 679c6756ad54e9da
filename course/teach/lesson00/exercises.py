"""Checkers of lesson 00: the size of a cache, the work it saves, and a decode loop of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import Mock

from roseinfer.cli.repository import stages_package
from roseinfer.models import Model, ModelConfig
from roseinfer.reference import reference_generate
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Case, Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tokens, explain_value
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


# 00.3


def draw_shape(rng: Random) -> tuple[int, int, int, int]:
    kv_heads = rng.randint(1, 4)
    return rng.randint(1, 7), kv_heads * rng.randint(1, 3), kv_heads, rng.choice((1, 2, 5))


def draw_width(rng: Random) -> int:
    return rng.choice((1, 2, 4))


def describe_shape(tokens: str) -> Callable[..., str]:
    return inputs("num_layers", "num_heads", "num_kv_heads", "head_dim", tokens, "bytes_per_value")


def on_shape(
    answer: Callable[..., Any], layers: int, heads: int, kv_heads: int, head_dim: int, tokens: Any, width: int
) -> Any:
    shape = replace(SHAPE, num_layers=layers, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
    return answer(shape, tokens, width)


# Texts of the solutions of 00.3 and 02.3.
SHAPE_MISTAKES = {
    "one of the two tensors is missing: K and V are both kept": {"2 * config": "config"},
    "that is one layer, the model has num_layers of them": {"config.num_layers *": ""},
    "those are values, not bytes: each takes bytes_per_value": {" * bytes_per_value": ""},
    "a value does not always take so many bytes, bytes_per_value says it": {" * bytes_per_value": " * 4"},
    "query heads are not cached: count num_kv_heads": {"num_kv_heads": "num_heads"},
    "hidden_size is not what is cached: count KV heads and their head_dim": {
        "config.num_kv_heads * config.head_dim": "config.hidden_size"
    },
    "head_dim is a number of its own, not hidden_size // num_heads": {
        "config.head_dim": "(config.hidden_size // config.num_heads)"
    },
}
CACHE_MISTAKES = SHAPE_MISTAKES | {"that is one token, num_tokens of them are cached": {" * num_tokens": ""}}
CACHES = [
    (1, 6, 2, 3, 0, 4),
    *draw(lambda rng: (*draw_shape(rng), rng.randint(1, 9), draw_width(rng))),
]

register(
    "00.3",
    Comparison(CACHES, as_solved("00.3", CACHE_MISTAKES, call=on_shape), describe_shape("num_tokens"), on_shape),
)


# 00.1

WITHOUT, WITH = "sum(prompt_len + step for step in range(new_tokens))", "prompt_len + new_tokens - 1"
WORK = {
    "without a cache": {
        "that is the count with a cache; the pair begins with the one without": {WITHOUT: WITH},
        "the text grows: every step computes the tokens made so far, too": {"prompt_len + step": "prompt_len"},
        "the first step computes the prompt alone, no new token is there yet": {"+ step": "+ step + 1"},
        "that is as long as the text gets; each step computes all of it that is there": {WITHOUT: f"{WITH} + 1"},
    },
    "with a cache": {
        "that is the count without a cache; the pair ends with the one with a cache": {WITH: WITHOUT},
        "the last token is made, but never computed further": {" - 1": ""},
        "the prompt has to be computed too, once, by the prefill": {WITH: "new_tokens"},
        "the prompt is computed once; its K and V are kept": {WITH: "prompt_len * new_tokens"},
    },
}
TEXTS = [(1, 1), (1, 2), (64, 1), (1024, 500), *draw(lambda rng: (rng.randint(2, 20), rng.randint(2, 20)))]

register("00.1", Comparison(TEXTS, as_solved_by_name("00.1", WORK), inputs("prompt_len", "new_tokens")))


# 00.2

LOOP: dict[str, dict[str, Any]] = {
    "tokens": {
        "only the new tokens are asked for (seq.output_ids), the prompt is not": {"seq.output_ids": "seq.token_ids"},
        "the prefill gives the first one": {"< max_tokens": "<= max_tokens"},
        "the prefill's logits give the first one, it is missing": {
            "< max_tokens": "<= max_tokens",
            "return seq.output_ids": "return seq.output_ids[1:]",
        },
        "the prefill's token is not the only one": {"while ": "while False and "},
    },
    "calls of prefill": {},
    "calls of decode": {},
    "blocks that you keep": {"free the sequence at the end": {"stage.free(seq)": "pass"}},
}
STAGE, DRAWN = stages_package().NaiveCat, drawn_model()
GENERATIONS: list[Case] = [
    ([3], 1),
    ([3], 2),
    *[([7] * n, 3) for n in (62, 63, 64, 65, 128)],
    *draw(lambda rng: ([rng.randrange(30) for _ in range(rng.randint(1, 12))], rng.randint(1, 6))),
]


def _describe_generation(prompt: list[int], max_tokens: int) -> str:
    return f"{f'prompt {prompt}' if len(prompt) < 13 else f'a prompt of {len(prompt)} tokens'}, max_tokens={max_tokens}"


def _run_loop(
    answer: Callable[..., Any], *generation: Any, stage_class: type[Stage] = STAGE, model: Model = DRAWN
) -> dict[str, Any]:
    """Run a decode loop on a stage that counts its calls."""
    stage: Any = stage_class(model, num_blocks=4)
    free = stage.num_free_blocks
    stage.prefill, stage.decode = Mock(wraps=stage.prefill), Mock(wraps=stage.decode)
    return {
        "tokens": answer(stage, *generation),
        "calls of prefill": stage.prefill.call_count,
        "calls of decode": stage.decode.call_count,
        "blocks that you keep": free - stage.num_free_blocks,
    }


def _explain_run(got: Any, want: Any) -> str | None:
    return explain_tokens(got, want) if isinstance(want, list) else explain_value(got, want)


GENERATED = Comparison(
    GENERATIONS,
    as_solved_by_name("00.2", LOOP, _explain_run, _run_loop, Sequence=Sequence),
    _describe_generation,
)


@exercise("00.2", GENERATED)
def decode_loop(answer: Callable[[Stage, list[int], int], list[int]], stage_class: type[Stage], model: Model) -> None:
    GENERATED(answer, partial(_run_loop, stage_class=stage_class))
    prompt, max_tokens = list(range(20, 80)), 9
    got = _run_loop(answer, list(prompt), max_tokens, stage_class=stage_class, model=model)["tokens"]
    if message := explain_tokens(got, reference_generate(model, [prompt], max_tokens)[0]):
        raise Wrong(f"on this notebook's model, {_describe_generation(prompt, max_tokens)}: {message}")
