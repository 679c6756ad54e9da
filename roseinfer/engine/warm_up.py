"""warm_up: what only the first steps of a runner make, made before the first request comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from roseinfer.sequence import SamplingParams, Sequence

from .batch import FEW_ROWS
from .block_manager import BlockManager
from .runner import Runner
from .step import Step


def warm_up(runner: Runner) -> None:
    """Compile the kernels of decode steps and of short prompts, and set up libraries.

    On a GPU, also compile what prompts of any length need, and capture a graph of every shape. Needs a free block, and
    leaves it free.
    """
    if runner.model.device.type == "cuda":
        compile_prompts(runner)
    if runner.graphs:
        runner.graphs.warm_up()
    longest = min(FEW_ROWS + 1, longest_prompt(runner))
    for length in {min(8, longest), longest}:  # a GPU has kernels for few rows and for many
        with prompts(runner.blocks, 1, length) as step:
            runner.run(step)


@torch.inference_mode()
def compile_prompts(runner: Runner) -> None:
    """Compute prompts of all lengths for which attention is compiled otherwise, without graphs.

    A program of it has as many rows of queries as the longest prompt fills, 128 at most, and a step with few programs
    splits their contexts. So each length comes alone, and as often as there is room for it.
    """
    longest, blocks = longest_prompt(runner), runner.blocks
    for length in [n for n in (2, 4, 8, 16, 32, 64, 128) if n <= longest]:
        in_pool = blocks.num_free // blocks.blocks_for(length)
        for num_prompts in {1, min(len(blocks.table.ids), runner.max_num_tokens // length, in_pool)}:
            with prompts(blocks, num_prompts, length) as step:
                runner.compute(runner.prepare(step))


def longest_prompt(runner: Runner) -> int:
    """Return the tokens of the longest prompt for which there are blocks now, and that one step can compute."""
    num_blocks = min(runner.blocks.num_free, runner.blocks.table.ids.shape[1])
    return min(num_blocks * runner.blocks.block_size, runner.model.config.max_model_len, runner.max_num_tokens)


@contextmanager
def prompts(blocks: BlockManager, num_prompts: int, length: int) -> Iterator[Step]:
    """Yield a step over prompts that hold blocks as long as the caller's block runs."""
    seqs = [Sequence([0] * length, SamplingParams(temperature=0)) for _ in range(num_prompts)]
    blocks.reserve({seq.seq_id: length for seq in seqs})
    try:
        yield Step(seqs, [length] * num_prompts)
    finally:
        for seq in seqs:
            blocks.free(seq.seq_id)
