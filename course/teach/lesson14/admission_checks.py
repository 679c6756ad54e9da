"""What a learner's own rule of admission is worth: for 14.4, against the stage that it is a subclass of."""

from __future__ import annotations

from functools import cache
from random import Random

from roseinfer.arguments import counted
from roseinfer.blocks import OutOfBlocks
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.stage_checks import drawn_model, require_sizes, require_stage
from ..exercises.wrong import Wrong
from ..measure.request_run import Run, record_run, work

SIZES = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16}
NUM_LOADS, NUM_REQUESTS = 3, 10
MOST_AGAIN, MOST_STEPS = 2 / 3, 1.25  # of the stage's own
ALONE = "a step was empty: a request that is alone has to get in, whatever the rule"
# The promises of a queue that a rule of admission can break, such as by what it notes of each sequence.
TOUCHED = (
    "A queue runs to its end",
    "Refused when added",
    "Nothing after the end",
    "Any budget",
    "A pool that runs short",
    "No request starves",
    "Aborted anywhere",
    "One bad request",
)


def require_careful(answer: type[Stage]) -> None:
    """Raise Wrong unless a stage recomputes fewer tokens than stage 14, takes not many more steps, and is right."""
    require_stage(answer, "TokenBudget", "admit")
    stage_class = next(cls for cls in answer.__mro__ if cls.__module__.startswith("stages."))
    require_sizes(answer(drawn_model(1), **SIZES), **SIZES)
    (again, steps), (again_before, steps_before) = _measured(answer), _measured(stage_class)
    computed_again = f"{counted(again, 'token', 'was/were')} computed again"
    if again > MOST_AGAIN * again_before:
        raise Wrong(
            f"{computed_again} in {NUM_LOADS} loads, with stage 14's own rule {again_before}: at most {MOST_AGAIN:.0%} "
            "of these are allowed. Leave more room for those that run"
        )
    if steps > MOST_STEPS * steps_before:
        raise Wrong(
            f"{NUM_LOADS} loads took {steps} steps, with stage 14's own rule {steps_before}: at most {MOST_STEPS:.0%} "
            f"of these are allowed, and {computed_again}. The pool is underused: admit more"
        )
    room = SIZES["num_blocks"] * SIZES["block_size"]
    for prompt_len in (room, room // 3):  # alone, and in need of the whole pool: at once, or in the end
        _run(answer, [(0, prompt_len, room + 1 - prompt_len)])
    require_contract(answer, TOUCHED)


@cache
def _measured(stage_class: type[Stage]) -> tuple[int, int]:
    """Count the tokens that some loads compute again, and their steps. Raises Wrong if a request overtakes another."""
    again = steps = 0
    for load in range(NUM_LOADS):
        rng = Random(load)
        run = _run(stage_class, [(i, rng.randint(4, 30), rng.randint(10, 60)) for i in range(NUM_REQUESTS)], load)
        _require_order(run, load)
        again, steps = again + run.tokens_of("recomputed"), steps + len(run.steps)
    return again, steps


def _run(stage_class: type[Stage], requests: list[tuple[int, int, int]], seed: int = 0) -> Run:
    try:
        return record_run(stage_class(drawn_model(1), **SIZES), work(drawn_model(1), requests, seed))
    except OutOfBlocks as error:
        raise Wrong(f"requests of (step, prompt tokens, max_tokens) {requests} with {SIZES}: {ALONE}") from error


def _require_order(run: Run, load: int) -> None:
    last = {row.request: number for number, step in enumerate(run.steps) for row in step.rows}
    for number, step in enumerate(run.steps):
        computed = {row.request for row in step.rows}
        for older in set(range(max(computed))) - computed:
            if last[older] > number:
                raise Wrong(
                    f"load {load}: step {number} computes request {max(computed)}, and request {older}, which came "
                    "before it, waits: no request may overtake another, so a preempted sequence goes back to its own "
                    "place in the queue"
                )
