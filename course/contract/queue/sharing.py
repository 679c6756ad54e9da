"""Promises about shared blocks: found by all of their tokens, held while in use, and never written."""

from __future__ import annotations

from random import Random
from typing import Any

from roseinfer.stage import Stage

from ..small_models import MANY_IDS, prompts_for, text_of
from .driver import Queue

MODEL = "gpt2"
BLOCK = 4
SHARED = (8, 7, 9, 4, 5, 3, 1, 12, 16, 8)  # tokens in common: whole blocks, one fewer, one more


def shared_beginnings(stage_class: type[Stage], device: str) -> None:
    """Run prompts with a common beginning (one is only that) together and one after another, in pools that evict."""
    base, tails = list(text_of(MODEL, 16)), prompts_for(MODEL, (3,) * len(SHARED))
    prompts = [base[:8], base[:16], base[:8]] + [base[:n] + tail for n, tail in zip(SHARED, tails, strict=True)]
    for num_blocks, steps_between in ((60, 0), (60, 2), (60, 9), (8, 0), (8, 1), (10, 9)):
        queue = Queue(stage_class, device, budget=9, num_blocks=num_blocks, block_size=BLOCK, max_num_seqs=4)
        for i, prompt in enumerate(prompts):
            wishes: dict[str, Any] = {"temperature": 1.0, "seed": i} if i % 3 == 1 else {}
            queue.add(prompt, 1 + 5 * i % 7, **wishes)
            queue.steps(steps_between)
        queue.run_out_twice()


def samples_of_a_prompt(stage_class: type[Stage], device: str) -> None:
    """Draw samples of one prompt that ends inside a block, where each sample must write only its own tokens.

    The first one still waits, computes its prompt, decodes or has ended when the others come.
    """
    for length in (6, 3):
        for steps_before in (0, 1, 2, 4, 9):
            queue = Queue(stage_class, device, budget=5, num_blocks=16, block_size=BLOCK, max_num_seqs=4)
            prompt = prompts_for(MODEL, (length,))[0]
            first = queue.add(prompt, 12, temperature=1.0, seed=0)
            queue.steps(steps_before)
            for seed in (1, 2, 3):
                queue.add(prompt, 4 + seed, temperature=1.0, seed=seed, parent=first)
            queue.steps(2)
            queue.add([9, 9, 9], 9)
            queue.run_out()


def told_apart_by_all_tokens(stage_class: type[Stage], device: str) -> None:
    """Check that prompts that look alike, but share no beginning, do not get each other's blocks."""
    text = list(text_of(MODEL, 8, seed=3))
    one_other = [text[:i] + [(text[i] + 1) % 97] + text[i + 1 :] for i in range(8)]
    moved = [text[::-1], text[4:] + text[:4], text[4:] * 2, text[:4] * 2, [text[1], text[0], *text[2:]]]
    joined = [[1, 11, 1, 1], [11, 1, 1, 1], [1, 1, 11, 1], [12, 3, 0, 0], [1, 23, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    _one_after_the_other(stage_class, device, MODEL, [text, *one_other, *moved, *joined])
    blocks = [list(text_of(MODEL, BLOCK, seed)) for seed in range(5)]
    ends_alike = [sum(blocks[:i] + blocks[4:] + blocks[i + 1 : 4], []) for i in range(4)]
    _one_after_the_other(stage_class, device, MODEL, [sum(blocks[:4], []), *ends_alike])


def token_ids_of_any_size(stage_class: type[Stage], device: str) -> None:
    """Check token ids over 255 and over 65,535, where 8 and 16 bits are full."""
    near = [[257, 1, 2, 3], [1, 257, 2, 3], [1, 1, 2, 3], [256, 0, 2, 3], [0, 1, 2, 3], [2, 1, 0, 3]]
    far = [[token + 2**16 * (i == at) for i, token in enumerate([5, 6, 7, 8])] for at in (-1, 0, 1, 2, 3)]
    _one_after_the_other(stage_class, device, MANY_IDS, near + far)


def _one_after_the_other(stage_class: type[Stage], device: str, model: str, prompts: list[list[int]]) -> None:
    """Run each prompt plus one token, so that the prompt's blocks are full; then all again in reverse order."""
    queue = Queue(stage_class, device, model, num_blocks=80, block_size=BLOCK, max_num_seqs=2)
    for prompt in [*prompts, *prompts[::-1]]:
        queue.add([*prompt, 50], 4)
        queue.steps(9)
    queue.run_out()


def many_texts(stage_class: type[Stage], device: str) -> None:
    """Check some thousand blocks, each with another text, among which keys of 16 bits would collide."""
    rng, num_texts, length = Random(0), 256, 16
    queue = Queue(stage_class, device, num_blocks=num_texts * length // 2 + 80, block_size=2, max_num_seqs=8)
    for _ in range(num_texts):
        queue.add([rng.randrange(97) for _ in range(length + 1)], 1)
    queue.run_out()
