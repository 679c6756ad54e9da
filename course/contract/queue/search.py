"""Random tests of a queue: requests, steps, aborts and errors, and the shortest run that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from roseinfer.arguments import counted
from roseinfer.models import Model
from roseinfer.stage import Stage

from ..injected_errors import ErrorAt, OutOfMemory
from ..making import copy_of
from ..shortest_case import Case, require_none_breaks, told
from ..small_models import text_of
from .driver import Queue

MODEL = "gpt2"
NUM_CASES, NUM_CALLS = 12, 30
NUM_TEXTS, LONGEST = 3, 20


@dataclass(frozen=True)
class QueueCall:
    """One call of a random run, by its kind.

    "add": a request whose prompt has the first `number` tokens of a text, and then `own` ones. "step": `number` steps.
    "abort": request `number`. "fail": an error at operation `number` of a step.
    """

    kind: str
    number: int
    text: int = 0
    own: int = 0
    max_tokens: int = 1
    seed: int | None = None

    def __str__(self) -> str:
        if self.kind == "add":
            drawn = "" if self.seed is None else f", drawn by seed {self.seed}"
            prompt = f"{self.number} tokens of text {self.text} and {self.own} of its own"
            return f"add a prompt of {prompt}, max_tokens={self.max_tokens}{drawn}"
        if self.kind == "step":
            return counted(self.number, "step")
        return f"abort request {self.number}" if self.kind == "abort" else f"an error at operation {self.number}"


@dataclass(frozen=True)
class QueueCase(Case):
    """QueueCalls on a stage with these sizes."""

    num_blocks: int
    block_size: int
    places: int
    budget: int

    def __str__(self) -> str:
        pool = f"{self.num_blocks} blocks of {counted(self.block_size, 'token')}, max_num_seqs={self.places}"
        return "; ".join([pool, f"max_num_batched_tokens={self.budget}", *map(str, self.calls)])


def random_case(seed: int) -> QueueCase:
    rng = Random(seed)
    block_size, places = rng.choice((1, 2, 3, 4)), rng.randint(1, 4)
    num_blocks = -(-rng.randint(30, 60) // block_size)
    calls = tuple(_random_call(rng) for _ in range(NUM_CALLS))
    return QueueCase(num_blocks, block_size, places, places + rng.randint(0, 12), calls=calls)


def _random_call(rng: Random) -> QueueCall:
    kind = rng.choices(("add", "step", "abort", "fail"), weights=(8, 8, 2, 1))[0]
    if kind != "add":
        return QueueCall(kind, rng.randint(*{"step": (1, 3), "abort": (0, 12), "fail": (0, 120)}[kind]))
    seed = rng.randrange(9) if rng.random() < 0.3 else None
    shared, own = rng.randint(0, LONGEST), rng.randint(0, 4)
    return QueueCall("add", shared, rng.randrange(NUM_TEXTS), own + (not shared + own), rng.randint(1, 9), seed)


def random_queues(stage_class: type[Stage], device: str) -> None:
    require_none_breaks(
        map(random_case, range(NUM_CASES)), partial(what_breaks, stage_class, device, copy_of(MODEL, device))
    )


def what_breaks(stage_class: type[Stage], device: str, model: Model, case: QueueCase) -> AssertionError | None:
    """Run the case on a fresh stage of the model and return the first error; None if there is none."""
    try:
        queue = Queue(
            stage_class,
            device,
            own=model,
            budget=case.budget,
            num_blocks=case.num_blocks,
            block_size=case.block_size,
            max_num_seqs=case.places,
        )
        for call in case.calls:
            _take(queue, call)
        queue.run_out()
    except Exception as error:
        return told(f"the shortest run found: {case}; to the end", error)
    return None


def _take(queue: Queue, call: QueueCall) -> None:
    if call.kind == "add":
        own = text_of(MODEL, 5, seed=20 + len(queue.seqs))
        prompt = [*text_of(MODEL, LONGEST, seed=10 + call.text)[: call.number], *own[: call.own]]
        drawn: dict[str, Any] = {} if call.seed is None else {"temperature": 2.0, "seed": call.seed}
        queue.add(prompt or [0], call.max_tokens, **drawn)
    elif call.kind == "step":
        queue.steps(call.number)
    elif call.kind == "abort" and call.number < len(queue.seqs) and not queue.seqs[call.number].finish_reason:
        queue.abort(queue.seqs[call.number])
    elif call.kind == "fail" and queue.stage.has_work:
        queue.failing_step(ErrorAt(OutOfMemory, call.number))
