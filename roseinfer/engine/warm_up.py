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
        with prompts(runner.blocks, [length]) as step:
            runner.run(step)


@torch.inference_mode()
def compile_prompts(runner: Runner) -> None:
    """Compute steps for which attention is compiled otherwise, without graphs: prompts, decodes, and both.

    A program for a prompt has as many rows of queries as the longest one fills, 128 at most, and a step with few
    programs splits their contexts. So each length comes alone, and as often as there is room for it, and where few
    sequences may run, the longest prompt alone has more programs than that. How decodes are cut depends on the number
    of sequences, and changes between two powers of two at most once.
    """
    longest, blocks, max_num_seqs = longest_prompt(runner), runner.blocks, len(runner.blocks.table.ids)
    for length in powers_of_two(2, min(longest, 128)):
        room = min(runner.max_num_tokens // length, blocks.num_free // blocks.blocks_for(length))
        for num_prompts in {1, min(max_num_seqs, room)}:
            compute_prompts(runner, [length] * num_prompts)
    if longest > 128:
        compute_prompts(runner, [longest])
    most = min(max_num_seqs, runner.max_num_tokens - 1, blocks.num_free - 1) if longest > 1 else 1
    for power in powers_of_two(1, most):
        for num_seqs in {power, min(2 * power - 1, most)}:
            compute_prompts(runner, [1] * num_seqs)
            if num_seqs > 1:
                compute_prompts(runner, [1] * (num_seqs - 1) + [2])


def compute_prompts(runner: Runner, lengths: list[int]) -> None:
    with prompts(runner.blocks, lengths) as step:
        runner.compute(runner.prepare(step))


def powers_of_two(first: int, last: int) -> list[int]:
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]


def longest_prompt(runner: Runner) -> int:
    """Return the tokens of the longest prompt for which there are blocks now, and that one step can compute."""
    num_blocks = min(runner.blocks.num_free, runner.blocks.table.ids.shape[1])
    return min(num_blocks * runner.blocks.block_size, runner.model.config.max_model_len, runner.max_num_tokens)


@contextmanager
def prompts(blocks: BlockManager, lengths: list[int]) -> Iterator[Step]:
    """Yield a step over prompts that hold blocks as long as the caller's block runs."""
    seqs = [Sequence([0] * length, SamplingParams(temperature=0)) for length in lengths]
    blocks.reserve({seq.seq_id: len(seq) for seq in seqs})
    try:
        yield Step(seqs, lengths)
    finally:
        for seq in seqs:
            blocks.free(seq.seq_id)
