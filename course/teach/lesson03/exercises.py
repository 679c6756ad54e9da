"""Checkers of lesson 03: the slice rule, the post's batch, prompts that catch bugs, an append with fewer views."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor

from course.posts.data import post_table
from roseinfer.generate import begin, generate
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Case, Comparison, draw
from ..exercises.exercise import exercise, register
from ..exercises.explain import plain
from ..exercises.stage_checks import (
    APPEND_SPAN,
    NUM_SEQS,
    NUM_TOKENS,
    by_sequence,
    require_cached,
    require_nothing_kept,
    require_tokens,
    step_ops,
)
from ..exercises.wrong import Wrong
from ..lesson00.exercises import SHAPE
from ..lesson01.exercises import BLOCK_SIZE
from .post_counts import ALL, POSTS_TORCH, gather_slices

POST_COUNTS = post_table("000", "gather_after").set_index("name")["n"]
POST_SLICES, POST_COPIES = int(POST_COUNTS["aten::slice"]), int(POST_COUNTS["aten::copy_"])


# 03.2

RULE, COLONS = "(part.start or 0, part.stop) != (0, size)", "not colon_is_free"
MISCOUNTS = {
    "a range that covers its whole dimension is dropped": {RULE: "True"},
    "a range that starts at 0 is dropped when it covers its whole dimension, and not otherwise": {
        RULE: "part.start not in (None, 0)"
    },
    "a range to the end of its dimension is dropped when it starts at 0, and not otherwise": {
        RULE: "part.stop not in (None, size)"
    },
    "a range is not a bare `:`, it is a slice on every version": {RULE: "False"},
    "a bare `:` is not a slice from torch 2.9 on": {COLONS: "True"},
    "a bare `:` is a slice before torch 2.9": {COLONS: "False"},
    "a bare `:` is a slice before torch 2.9, and not since": {COLONS: "colon_is_free"},
    "an integer is a select, never a slice": {"continue": "count += 1; continue"},
    "a dimension that the index does not name costs nothing": {"return count": "return len(shape)"},
}


def _draw_index(rng: Random) -> Case:
    shape = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 4)))
    index = tuple(_draw_part(rng, size) for size in shape[: rng.randint(1, len(shape))])
    return index, shape, rng.random() < 0.5


def _draw_part(rng: Random, size: int) -> int | slice:
    start, stop = sorted((rng.randint(0, size), rng.randint(0, size)))
    ranges = [slice(0, size), slice(None, size), slice(0, stop), slice(start, stop), slice(start, size)]
    ranges += [slice(None, stop), slice(start or 1, None)]
    parts: list[int | slice] = [rng.randrange(-size, size), ALL, ALL, *ranges]
    return rng.choice(parts)


INDICES = draw(_draw_index, 100)


def describe_index(index: tuple, shape: tuple[int, ...], colon_is_free: bool) -> str:
    def end(value: int | None) -> str:
        return "" if value is None else str(value)

    parts = [str(p) if isinstance(p, int) else f"{end(p.start)}:{end(p.stop)}" for p in index]
    text = ", ".join(parts) + "," * (len(parts) == 1) if parts else "()"
    return f"x[{text}] of shape {shape}, colon_is_free={colon_is_free}"


register("03.2", Comparison(INDICES, as_solved("03.2", MISCOUNTS), describe_index))


# 03.3


@exercise("03.3")
def posts_batch(answer: list[int]) -> None:
    lengths = plain(answer)
    if not isinstance(lengths, list) or not all(isinstance(n, int) and 1 <= n < BLOCK_SIZE for n in lengths):
        raise Wrong(f"expected a list of lengths from 1 to {BLOCK_SIZE - 1}, got {answer!r}")
    if not lengths:
        raise Wrong("got an empty list, expected a length per sequence")
    copies = SHAPE.num_layers * 2 * len(lengths)
    if copies != POST_COPIES:
        raise Wrong(f"{len(lengths)} sequences make {copies} copies per step; the post counts {POST_COPIES}")
    if (slices := gather_slices(lengths, POSTS_TORCH)) != POST_SLICES:
        longest = sum(n == max(lengths) for n in lengths)
        raise Wrong(f"these lengths make {slices} slices, the post counts {POST_SLICES}; longest sequences: {longest}")


# 03.4


NEW_TOKENS = 12
TOLERANCE = 1e-5


def broken_stages(right: type[Any]) -> dict[type[Stage], tuple[str, str]]:
    """Make broken variants of the right stage; each comes with what it does wrong, and which prompts would show it."""

    class ReadsPadding(right):
        """Attends to every column of the batch."""

        def build(self, seqs: list[Sequence]) -> Any:
            step = super().build(seqs)
            step.mask.fill_(True)
            return step

    class FirstBlockAlone(right):
        """Gathers only the first block of each sequence."""

        def filled_blocks(self, seq: Sequence, layer: int, num_tokens: int) -> Iterator[Any]:
            return itertools.islice(super().filled_blocks(seq, layer, num_tokens), 1)

    class OldBlock(right):
        """Stores the first token of a new block in the block before it."""

        def append_token(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
            index, slot = (seq.num_cached_tokens - 1) // self.block_size, seq.num_cached_tokens % self.block_size
            k_block, v_block = self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]
            k_block[:, slot], v_block[:, slot] = k, v

    return {
        ReadsPadding: ("reads padding", "make the lengths differ more"),
        FirstBlockAlone: ("gathers only the first block", f"no sequence outgrows its block of {BLOCK_SIZE}"),
        OldBlock: (
            "stores the first token of a new block in the block before it",
            "no sequence crosses the edge of a block while it decodes, and is read afterwards",
        ),
    }


@exercise("03.4")
def revealing(answer: Callable[[], list[list[int]]], buggy_stage: type[Stage], model: Model) -> None:
    right_stage: Any = buggy_stage.__mro__[1]  # that the lesson's buggy stage is made from
    got = answer()
    prompts = plain(got)
    valid = isinstance(prompts, list) and all(isinstance(p, list) and p for p in prompts)
    if not prompts or not valid or not all(isinstance(token, int) for p in prompts for token in p):
        raise Wrong(f"expected a list of prompts, each a list of token ids, got {got!r}")
    if len(prompts) == 1:
        raise Wrong("a sequence alone is always the longest: its position is right")
    if len({len(p) for p in prompts}) == 1:
        raise Wrong(f"all prompts have {len(prompts[0])} tokens: the longest length is right for each of them")
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    num_blocks = sum(-(-(len(prompt) + NEW_TOKENS) // BLOCK_SIZE) for prompt in prompts)
    right = [seq.output_ids for seq in generate(right_stage(model, num_blocks=num_blocks), prompts, params)]

    def logits(stage_class: type[Stage]) -> Tensor:
        """Compute the logits of each decode step that is given the right tokens."""
        stage = stage_class(model, num_blocks=num_blocks)
        seqs, steps = begin(stage, prompts, params), []
        for number in range(1, NEW_TOKENS):
            steps.append(stage.decode(seqs))
            for seq, tokens in zip(seqs, right, strict=True):
                seq.append(tokens[number])
        return torch.stack(steps)

    position = "gives every sequence the longest length as its position", "make the lengths differ more"
    expected = logits(right_stage)
    for stage_class, (bug, hint) in ({buggy_stage: position} | broken_stages(right_stage)).items():
        if torch.allclose(logits(stage_class), expected, rtol=0, atol=TOLERANCE):
            raise Wrong(f"the stage that {bug} has stage 03's logits on these prompts: {hint}")


# 03.1


@exercise("03.1")
def fewer_selects(answer: type[Stage], model: Model) -> None:
    require_cached(answer, by_sequence)
    require_tokens(answer, model)
    require_contract(answer, ["A failed step is made again", "Back in other blocks"])
    require_nothing_kept(answer, model)
    budget = 4 * model.config.num_layers * NUM_SEQS
    for num_tokens in (NUM_TOKENS, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + NUM_TOKENS):
        selects = step_ops(answer, model, APPEND_SPAN, [num_tokens] * NUM_SEQS)["aten::select"]
        if (too_many := selects - budget) > 0:
            raise Wrong(
                f"the tokens are right, but with {num_tokens} tokens a sequence append makes {too_many} selects too "
                f"many ({selects}, the budget is {budget}, 4 per layer and sequence)"
            )
