"""Checkers of lesson 00: the size of a cache, the work it saves, and a decode loop of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from roseinfer.models import Model, ModelConfig
from roseinfer.reference import reference_generate
from roseinfer.stage import Stage

from .exercise import Wrong, exercise
from .explain import explain_counts, explain_number, explain_tokens

SHAPE = ModelConfig(
    architecture="gpt2", vocab_size=50257, hidden_size=768, num_layers=12, num_heads=12, num_kv_heads=12,
    head_dim=64, intermediate_size=3072, max_model_len=1024,
)  # fmt: skip


@exercise(
    "00.1",
    title="Bytes of a KV cache",
    minutes=5,
    difficulty=1,
    importance=5,
    stub="def kv_bytes(config, num_tokens, bytes_per_value): ...",
    task="How many bytes does the cache of `num_tokens` tokens take? Every layer keeps one K and one V "
    "vector of `head_dim` values for each key/value head.",
    hints=(
        "Start with one token in one layer: which tensors does attention keep for it?",
        "K and V are two tensors of [num_kv_heads, head_dim].",
        "2 × num_layers × num_kv_heads × head_dim × num_tokens × bytes_per_value.",
    ),
)
def kv_bytes(answer: Callable[[ModelConfig, int, int], int]) -> None:
    for config in (replace(SHAPE, num_kv_heads=3), replace(SHAPE, num_layers=5, head_dim=80)):
        for num_tokens, width in ((1, 4), (100, 2)):
            want = 2 * config.num_layers * config.num_kv_heads * config.head_dim * num_tokens * width
            mistakes = {
                want // 2: "one of the two tensors is missing: K and V are both kept",
                want // config.num_layers: "that is one layer, the model has num_layers of them",
                want // width: "those are values, not bytes: each takes bytes_per_value",
                want * 8: "those are bits",
                want * config.num_heads // config.num_kv_heads: "query heads are not cached: count num_kv_heads",
                want // config.num_kv_heads: "that is one head, each of num_kv_heads keeps its own",
                want // num_tokens: "that is one token, num_tokens of them are cached",
            }
            if message := explain_number(answer(config, num_tokens, width), want, mistakes=mistakes):
                where = f"{config.num_layers} layers, {config.num_kv_heads} KV heads, {num_tokens} tokens"
                raise Wrong(f"{where}, {width} bytes a value: {message}")


@exercise(
    "00.2",
    title="Work that the cache saves",
    minutes=5,
    difficulty=1,
    importance=4,
    stub="def tokens_computed(prompt_len, new_tokens): ...",
    task="How many tokens go through the model to make `new_tokens` tokens from a prompt of "
    "`prompt_len`, without a cache and with one? Return both as a pair.",
    hints=(
        "Move the slider above and write down the counts of the first three steps.",
        "Without a cache, step i computes prompt_len + i tokens, for i from 0 to new_tokens - 1.",
        "With a cache, the prefill computes the prompt and gives the first token; each later step computes one.",
    ),
)
def tokens_computed(answer: Callable[[int, int], tuple[int, int]]) -> None:
    for prompt_len, new_tokens in ((1, 1), (4, 3), (100, 50)):
        without = sum(prompt_len + step for step in range(new_tokens))
        cached = prompt_len + new_tokens - 1
        got = answer(prompt_len, new_tokens)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(f"expected a pair (without, with), got {got!r}")
        if got == (cached, without) != (without, cached):
            raise Wrong("the pair is the wrong way round: first without a cache, then with one")
        parts = (
            ("without", without, {
                prompt_len * new_tokens: "the text grows: every step computes the tokens made so far, too",
                without + new_tokens: "the first step computes the prompt alone, no new token is there yet",
                without - prompt_len: "the first token costs a pass over the prompt",
            }),
            ("with", cached, {
                cached + 1: "the last token is made, but never computed further",
                new_tokens: "the prompt has to be computed too, once, by the prefill",
                prompt_len: "each token after the first costs a step of its own",
            }),
        )  # fmt: skip
        for (name, want, mistakes), count in zip(parts, got, strict=True):
            if message := explain_number(count, want, mistakes=mistakes):
                raise Wrong(f"prompt_len={prompt_len}, new_tokens={new_tokens}, {name} a cache: {message}")


@exercise(
    "00.3",
    title="Your own decode loop",
    minutes=15,
    difficulty=2,
    importance=4,
    stub="def my_generate(stage, prompt_ids, max_tokens): ...",
    task="Write greedy generation with the three calls of a stage: `prefill`, `decode`, "
    "`free`. Return the `max_tokens` new token ids, and leave every block free.",
    hints=(
        "prefill returns the logits [V] of the prompt's last token: they already give the first new token.",
        "decode wants exactly one new token: append before you call it. It returns [B, V], and here B is 1.",
        "seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens)); logits = stage.prefill(seq); then append "
        "int(logits.argmax()) and decode in turn until seq.output_ids has max_tokens; stage.free(seq) at the end.",
    ),
)
def decode_loop(answer: Callable[[Stage, list[int], int], list[int]], stage_class: type[Stage], model: Model) -> None:
    for prompt, max_tokens in (([5, 6, 7], 1), (list(range(20, 80)), 9)):
        stage = stage_class(model, num_blocks=4)
        calls = _count_calls(stage)
        given = list(prompt)
        got = answer(stage, given, max_tokens)
        [want] = reference_generate(model, [prompt], max_tokens)
        if isinstance(got, list) and got == prompt + want:
            raise Wrong("the prompt is part of what you return: only the new tokens are asked for (seq.output_ids)")
        if isinstance(got, list) and len(got) != max_tokens:
            raise Wrong(f"max_tokens={max_tokens}, but {len(got)} tokens came back; the prefill gives the first one")
        if message := explain_tokens(got, want):
            raise Wrong(f"max_tokens={max_tokens}: {message}")
        if given != prompt:
            raise Wrong("the tokens are right, but prompt_ids has changed: it belongs to whoever called you")
        if stage.num_free_blocks != 4:
            raise Wrong(f"the tokens are right, but {4 - stage.num_free_blocks} blocks were not given back: free it")
        if message := explain_counts(calls, {"prefill": 1, "decode": max_tokens - 1}):
            raise Wrong(f"max_tokens={max_tokens}: {message}")


def _count_calls(stage: Stage) -> Counter[str]:
    """How often prefill and decode of this stage are called from now on."""
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
