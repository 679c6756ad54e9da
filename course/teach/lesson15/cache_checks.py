"""What judges a learner's own prefix cache: its tokens and books after every step, and how many tokens it finds."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

from course.contract.queue.driver import Queue
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.stage_checks import require_sizes, require_stage
from ..exercises.wrong import Failed, Wrong

BLOCK_SIZE, OUTPUT_LEN = 4, 2
SIZES: dict[str, Any] = {"num_blocks": 30, "block_size": BLOCK_SIZE, "max_num_seqs": 1}
# The promises that other books can break. Those of the queue hold a block in several sequences at once.
TOUCHED = (
    "Every block comes back",
    "An empty pool changes nothing",
    "Prefilled again",
    "Two at once",
    "A pool that runs short",
    "Shared beginnings",
    "Samples of a prompt",
    "Told apart by all tokens",
    "Aborted anywhere",
)


def require_policy(stage_class: type[Stage]) -> None:
    """Raise Wrong unless the stage finds more than the course's stage that it is made from, and changes no token."""
    require_stage(stage_class, "PrefixCache", "block_key")
    base: type[Stage] = next(cls for cls in stage_class.__mro__ if cls.__module__.startswith("stages."))
    try:
        mine = _num_found(stage_class)
    except AssertionError as error:
        raise Wrong(
            f"{error}. Was a block with another text found for it? An evicted block must not be found any more"
        ) from error
    asked, theirs = sum(len(prompt) for prompts in _runs() for prompt in prompts), _num_found(base)
    if mine == theirs:
        raise Wrong(f"of {asked} tokens {mine} are found, as by {base.name}: does it evict in another order?")
    if mine < theirs:
        raise Wrong(f"of {asked} tokens {mine} are found, fewer than the {theirs} of {base.name}")
    require_contract(stage_class, TOUCHED)


@cache
def _num_found(stage_class: type[Stage]) -> int:
    """Run all prompts, one at a time; count the tokens that are found as those that are not computed."""
    return sum(map(len, sum(_runs(), []))) - sum(_num_computed(stage_class, prompts) for prompts in _runs())


def _num_computed(stage_class: type[Stage], prompts: list[list[int]]) -> int:
    queue, computed = Queue(stage_class, "cpu", **SIZES), 0
    stage = queue.stage
    require_sizes(stage, **SIZES)
    run, evict = stage.run, stage.tables.evict

    def counted_run(seqs: Any, num_new: list[int]) -> Any:
        nonlocal computed
        computed += sum(num_new)
        return run(seqs, num_new)

    def told_evict() -> int:
        num_idle = len(stage.tables.idle)
        try:
            return evict()
        except Exception as error:
            raise Failed(
                f"evict() with {num_idle} idle blocks, one of which it has to evict and return", error
            ) from error

    with patch.object(stage, "run", counted_run), patch.object(stage.tables, "evict", told_evict):
        for prompt in prompts:
            queue.add(prompt, OUTPUT_LEN)
            for _ in queue.patience():
                queue.step()
    queue.run_out()
    return computed - len(prompts) * (OUTPUT_LEN - 1)  # the last token of an output is never computed


@cache
def _runs() -> list[list[list[int]]]:
    """Draw prompts with one of three beginnings, each with its own end, between long texts that come only once.

    In a last run each idle block has been found once when the first text needs one.
    """
    runs = []
    for seed in range(3):
        rng = Random(seed)
        beginnings = [[rng.randrange(31) for _ in range(4 * BLOCK_SIZE)] for _ in range(3)]
        prompts = []
        for _ in range(20):
            prompts.append([*rng.choice(beginnings), rng.randrange(31), rng.randrange(31)])
            prompts.append([rng.randrange(31) for _ in range(rng.randint(9, 14) * BLOCK_SIZE + 1)])
        runs.append(prompts)
    beginnings = [[(5 * i + token) % 31 for token in range(4 * BLOCK_SIZE)] for i in range(7)]
    return [*runs, [*([*one, end] for one in beginnings for end in (1, 2)), *runs[0][:4]]]
