"""What judges a learner's own prefix cache: how many tokens it finds, and the promises of the contract."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from course.contract.queue.driver import Queue
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.stage_checks import require_sizes, require_stage
from ..exercises.wrong import Wrong

BLOCK_SIZE, OUTPUT_LEN = 4, 2
SIZES: dict[str, Any] = {"num_blocks": 30, "block_size": BLOCK_SIZE, "max_num_seqs": 1}
# The promises in which several sequences hold a block, or blocks run short.
TOUCHED = (
    *("Two at once", "A pool that runs short", "Shared beginnings"),
    *("Samples of a prompt", "Told apart by all tokens", "Aborted anywhere"),
)


def require_policy(stage_class: type[Stage]) -> None:
    """Raise Wrong unless the stage finds more than the course's stage that it is made from, and changes no token."""
    require_stage(stage_class, "PrefixCache", "block_key")
    base: type[Stage] = next(cls for cls in stage_class.__mro__ if cls.__module__.startswith("stages."))
    try:
        mine, again, theirs = _num_computed(stage_class), _num_computed(stage_class), _num_computed_by_the_course(base)
    except AssertionError as error:
        raise Wrong(
            f"{error}. Was a block with another text found for it? An evicted block must not be found any more"
        ) from error
    asked = sum(map(len, _prompts()))
    found = f"of {asked} tokens {asked - mine} are found"
    if mine == theirs:
        raise Wrong(f"{found}, as by {base.name}: does it evict in another order?")
    if mine > theirs:
        raise Wrong(f"{found}, fewer than the {asked - theirs} of {base.name}")
    if again != mine:
        raise Wrong(
            f"{found}, and {asked - again} by a second stage of the class: record in its own tables what it does"
        )
    require_contract(stage_class, TOUCHED)


def _num_computed(stage_class: type[Stage]) -> int:
    """Run the prompts, one at a time, and count their tokens that are computed."""
    queue, computed = Queue(stage_class, "cpu", **SIZES), 0
    stage = queue.stage
    require_sizes(stage, **SIZES)
    run = stage.run

    def counted_run(seqs: Any, num_new: list[int]) -> Any:
        nonlocal computed
        computed += sum(num_new)
        return run(seqs, num_new)

    stage.run = counted_run
    for prompt in _prompts():
        queue.add(prompt, OUTPUT_LEN)
        for _ in queue.patience():
            queue.step()
    queue.run_out()
    return computed - len(_prompts()) * (OUTPUT_LEN - 1)  # the last token of an output is never computed


_num_computed_by_the_course = cache(_num_computed)


@cache
def _prompts() -> list[list[int]]:
    """Draw prompts with one of three beginnings, each with its own end, between long texts that come only once.

    So many beginnings come twice at the end that each idle block has been found before when another one is needed.
    """
    rng = Random(0)
    beginnings = [_text(rng, 4 * BLOCK_SIZE) for _ in range(10)]
    prompts = []
    for _ in range(30):
        prompts.append([*rng.choice(beginnings[:3]), *_text(rng, 2)])
        prompts.append(_text(rng, rng.randint(9, 14) * BLOCK_SIZE + 1))
    return [*prompts, *([*one, end] for one in beginnings for end in (1, 2))]


def _text(rng: Random, length: int) -> list[int]:
    return [rng.randrange(31) for _ in range(length)]
