"""What a learner's own rule of admission is worth: for 14.4, against the stage that it is a subclass of."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

from roseinfer.arguments import counted
from roseinfer.bench.workload import Work
from roseinfer.blocks import OutOfBlocks
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.stage_checks import drawn_model, require_sizes
from ..exercises.wrong import Wrong
from ..measure.request_run import Run, record_run, work

SIZES = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16}
NUM_LOADS, NUM_REQUESTS = 3, 10
MOST_AGAIN, MOST_STEPS = 2 / 3, 1.25  # of the stage's own
MANY_STEPS, MANY_PREEMPTIONS = 2_000, 200  # of a run: nothing would ever end
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


def require_careful(answer: type[Stage], stage_class: type[Stage]) -> None:
    """Raise Wrong unless `answer` recomputes fewer tokens, takes not many more steps, and is right in all else."""
    own = [_run(answer, load) for load in _loads()]
    before = _measured(stage_class)
    again, steps = _sums(own)
    if again > MOST_AGAIN * before[0]:
        raise Wrong(
            f"{counted(again, 'token', 'was/were')} computed again in {NUM_LOADS} loads, "
            f"with stage 14's own rule {before[0]}: at most "
            f"{MOST_AGAIN:.0%} of these are allowed. Leave more room for those that run"
        )
    if steps > MOST_STEPS * before[1]:
        raise Wrong(
            f"{NUM_LOADS} loads took {steps} steps, with stage 14's own rule {before[1]}: at most {MOST_STEPS:.0%} of "
            f"these are allowed, and {counted(again, 'token', 'was/were')} computed again. "
            "The pool is underused: admit more"
        )
    _require_alone(answer)
    require_contract(answer, TOUCHED, _explain)


def _require_alone(answer: type[Stage]) -> None:
    """Raise Wrong unless a lone request gets in that needs the whole pool, at once or in the end."""
    room = SIZES["num_blocks"] * SIZES["block_size"]
    for prompt_len in (room, room // 3):
        whole = work(drawn_model(1), [(0, prompt_len, room + 1 - prompt_len)])
        try:
            record_run(answer(drawn_model(1), **SIZES), whole, clock=_StepLimit())
        except OutOfBlocks as error:
            request = f"a prompt of {prompt_len} tokens with max_tokens={room + 1 - prompt_len}"
            raise Wrong(f"{request}, which needs all {SIZES['num_blocks']} blocks in the end: {ALONE}") from error


def _explain(error: Exception | None) -> str:
    """Explain OutOfBlocks: the stage's own message blames blocks held outside of the queue, and here there are none."""
    return ALONE if isinstance(error, OutOfBlocks) else ""


@cache
def _loads() -> list[Work]:
    found = []
    for seed in range(NUM_LOADS):
        rng = Random(seed)
        arrivals = [(i, rng.randint(4, 30), rng.randint(10, 60)) for i in range(NUM_REQUESTS)]
        found.append(work(drawn_model(1), arrivals, seed))
    return found


@cache
def _measured(stage_class: type[Stage]) -> tuple[int, int]:
    return _sums([_run(stage_class, load) for load in _loads()])


def _sums(runs: list[Run]) -> tuple[int, int]:
    """Count the tokens computed again, and the steps."""
    return sum(run.tokens_of("recomputed") for run in runs), sum(len(run.steps) for run in runs)


def _run(stage_class: type[Stage], load: Work) -> Run:
    """Run a load on a new stage; raises Wrong for what is wrong under any rule of admission."""
    stage: Any = stage_class(drawn_model(1), **SIZES)
    if (num_blocks := stage.tables.num_blocks) != SIZES["num_blocks"]:
        raise Wrong(f"made with num_blocks={SIZES['num_blocks']}, the stage has a pool of {num_blocks} blocks")
    require_sizes(stage, **{name: size for name, size in SIZES.items() if name != "num_blocks"})
    number = _loads().index(load)
    _limit_preemptions(stage)
    overtaken = _watch_order(stage)
    try:
        run = record_run(stage, load, clock=_StepLimit())
    except OutOfBlocks as error:
        raise Wrong(f"{ALONE} ({error})") from error
    began = [request.times.first_scheduled for request in run.requests]
    for i, (one, next_one) in enumerate(pairwise(began)):
        if next_one < one:
            raise Wrong(f"load {number}: request {i + 1} began in step {next_one}, before request {i}")
    if overtaken:
        one, other = overtaken[0]
        raise Wrong(
            f"load {number}: request {one} waits in front of request {other}, which came before it: no request may "
            "overtake another, so a preempted sequence goes back to its own place in the queue"
        )
    return run


def _limit_preemptions(stage: Any) -> None:
    """Raise Wrong after many preemptions: make_room would call a preempt that gives nothing back without end."""
    preempt, counted = stage.preempt, []

    def limited(seq: Any) -> None:
        counted.append(seq)
        if len(counted) > MANY_PREEMPTIONS:
            raise Wrong(f"{MANY_PREEMPTIONS} preemptions in one load, and no end: does preempt still give back blocks?")
        preempt(seq)

    stage.preempt = limited


def _watch_order(stage: Any) -> list[tuple[int, int]]:
    """Return a list to which each step adds the pairs of requests that wait in the wrong order, by order of arrival."""
    add, step = stage.add, stage.step
    arrived: list[Any] = []
    overtaken: list[tuple[int, int]] = []

    def noted(seq: Any) -> None:
        add(seq)
        arrived.append(seq)

    def watched() -> Any:
        done = step()
        places = [arrived.index(seq) for seq in stage.waiting]
        overtaken.extend((one, next_one) for one, next_one in pairwise(places) if next_one < one)
        return done

    stage.add, stage.step = noted, watched
    return overtaken


class _StepLimit:
    """A clock on which each step lasts 1, and which stops a run that does not end."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, num_tokens: int) -> int:
        self.steps += 1
        if self.steps > MANY_STEPS:
            raise Wrong(f"after {MANY_STEPS} steps a load is not done: a request waits without end")
        return 1
