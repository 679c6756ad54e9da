"""The checker of 16.4: what a learner's step() launches, returns and raises, call by call, against the solution's."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import lru_cache
from itertools import zip_longest
from random import Random
from typing import Any
from unittest.mock import patch

from roseinfer.blocks import OutOfBlocks
from roseinfer.cli.repository import stages_package
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.stage_checks import drawn_model, require_stage

Overlap: Any = stages_package().Overlap  # its methods are watched while a step of a subclass runs
PROMPTS = [[7] * 3, list(range(1, 22)), [11, 12], [13], [5, 6, 7, 8, 9]]
MOST_CALLS = 60
# From where an error may come. compute: on the device, whose error finish() passes on.
ORIGINS = ("schedule", "launch", "compute", "finish")


class AnotherError(BaseException):
    """An error that is neither an Exception nor a KeyboardInterrupt, so no list of the usual kinds catches it."""


KINDS = {kind.__name__: kind for kind in (RuntimeError, ValueError, KeyboardInterrupt, OutOfBlocks, AnotherError)}
# max_tokens of each request, max_num_seqs, whether the pool runs short and prompts are cut, stop tokens, and what
# happens when: "abort before call 3", "RuntimeError from finish in call 2", or "".
Stops = tuple[int, ...]
Case = tuple[tuple[int, ...], int, bool, bool, Stops, str]


class _Run:
    """A stage with its requests. lines: what each call of its step() does."""

    def __init__(
        self, answer: Any, places: int, is_tight: bool, is_cut: bool, stops: tuple[int, ...], event: str
    ) -> None:
        sizes = {"max_num_seqs": places, "num_blocks": 9 if is_tight else 40, "block_size": 4}
        self.stage: Any = answer(drawn_model(1), **sizes, max_num_batched_tokens=5 if is_cut else 64)
        self.is_tight, self.stops, self.event = is_tight, stops, event
        self.seqs: list[Sequence] = []
        self.lines: list[str] = []
        self.num_calls = 0
        self.error: BaseException | None = None  # that the event has raised

    def add(self, max_tokens: tuple[int, ...]) -> None:
        for prompt, n in zip(PROMPTS, max_tokens, strict=False):
            self.seqs.append(Sequence(prompt, SamplingParams(max_tokens=n, ignore_eos=True, stop_token_ids=self.stops)))
            self.stage.add(self.seqs[-1])

    def to_the_end(self) -> None:
        while self.stage.has_work and self.num_calls < MOST_CALLS:
            self.step()

    def step(self) -> None:
        self.num_calls += 1
        if self.event == f"abort before call {self.num_calls}":
            for seq in list(self.stage.running):
                self.stage.abort(seq)
        self.called: list[str] = []
        try:
            with patch.multiple(Overlap, **{name: self._watched(name) for name in (*ORIGINS, "drop")}):
                done = self.stage.step()
        except BaseException as error:
            if self.error is None and not isinstance(error, OutOfBlocks):
                raise
            queue = [self.seqs.index(seq) for seq in (*self.stage.running, *self.stage.waiting)]
            which = "that error" if error is self.error else f"another error, {type(error).__name__}"
            end = f"raises {which}, {len(self.stage.in_flight)} steps in flight, requests queued: {queue}"
        else:
            known = isinstance(done, list) and all(seq in self.seqs for seq in done)
            end = f"returns requests {sorted(map(self.seqs.index, done))}" if known else f"returns {done!r}"
        # In a tight pool a step may be launched in the same call, once the one in flight is over.
        if not self.is_tight or "raises" in end:
            self.lines.append(", ".join([f"call {self.num_calls} of step()", *self.called, end]))

    def _watched(self, name: str) -> Any:
        method = getattr(Overlap, name)

        def watched(stage: Any, *args: Any, **kwargs: Any) -> Any:
            if name in ("launch", "finish") or (name == "drop" and stage.in_flight):
                self.called.append(f"{name}()")
            kind, _, event = self.event.partition(" ")
            if event == f"from {name} in call {self.num_calls}":
                self.error = KINDS[kind](f"in {name}")
                raise self.error
            return method(stage, *args, **kwargs)

        return watched


@lru_cache(maxsize=1000)
def _lines(answer: type[Stage], max_tokens: tuple[int, ...], *sizes: Any) -> list[str]:
    """Run the requests, begin again, and say what happens. The next stage of the class must not know of that step."""
    run = _Run(answer, *sizes)
    run.add(max_tokens)
    run.to_the_end()
    outputs = [f"request {i} has {seq.output_ids}" for i, seq in enumerate(run.seqs)]
    free = f"free blocks at the end: {run.stage.num_free_blocks}"
    run.add(max_tokens)
    run.step()
    return [*run.lines, *outputs, free]


def _lines_of_mistake(answer: type[Stage], *case: Any) -> list[str]:
    try:
        return _lines(answer, *case)
    except Exception as error:
        return [repr(error)]


def _explain(got: list[str], want: list[str]) -> str | None:
    for mine, right in zip_longest(got, want, fillvalue="nothing more"):
        if mine != right:
            return f"{mine}; expected: {right}"
    return None


def _draw_case(rng: Random) -> Case:
    max_tokens = tuple(rng.randint(3, 6) for _ in range(rng.randint(1, 5)))
    is_tight = len(max_tokens) > 2 and rng.random() < 0.5
    stops = tuple(rng.sample(range(31), rng.choice((0, 0, 6))))
    event = rng.choice(("", f"abort before call {rng.randint(2, 5)}"))
    return max_tokens, rng.randint(1, 3), is_tight, rng.random() < 0.5, stops, event


def _draw_error(rng: Random) -> Case:
    event = f"{rng.choice([*KINDS])} from {rng.choice(ORIGINS)} in call {rng.randint(1, 3)}"
    return tuple(rng.randint(4, 6) for _ in range(rng.randint(2, 5))), rng.randint(2, 3), False, False, (), event


EVENTS = [*(f"{kind} from finish in call 2" for kind in KINDS), "OutOfBlocks from schedule in call 1"]
CASES: list[Case] = [
    ((4, 4), 4, False, False, (), ""),
    *(((5, 5, 5), 2, False, False, (), event) for event in EVENTS),
    *draw(_draw_case, 24),
    *draw(_draw_error, 24),
]
AHEAD, FINISH = (
    "suppress(OutOfBlocks) if was_in_flight else nullcontext()",
    "return self.finish() if was_in_flight else []",
)
MISTAKES = {
    "the tokens of a step are asked for before the next one is launched, so the device is idle in between": {
        "        try:\n": "        try:\n            done = self.finish() if was_in_flight else []\n",
        AHEAD: "suppress(OutOfBlocks)",
        FINISH: "return done",
    },
    "host and device take turns: the step that was launched is not the one to finish": {
        FINISH: "return self.finish() if self.in_flight else []"
    },
    "planning and launching belong inside ahead(): outside of it the tokens in flight look not computed yet": {
        "self.ahead(), ": ""
    },
    "when nothing can be computed before the step in flight is over, that step is still finished": {
        AHEAD: "nullcontext()"
    },
    "with no step in flight OutOfBlocks is an error like any other": {AHEAD: "suppress(OutOfBlocks)"},
    "on any error call drop(), which discards the steps in flight": {"self.drop()": "pass"},
    "Ctrl-C is a KeyboardInterrupt: `except Exception` lets it pass": {"BaseException": "Exception"},
    "the caller of step() has to get the same error": {"raise": "return []"},
    "step() returns the sequences that have one token more": {
        FINISH: "return (self.finish() if was_in_flight else [])[:0]"
    },
}
NAMES = {"TakingTurns": Overlap, "OutOfBlocks": OutOfBlocks, "suppress": suppress, "nullcontext": nullcontext}
ONE_AHEAD = Comparison(
    CASES,
    as_solved("16.4", MISTAKES, _explain, _lines_of_mistake, **NAMES),
    inputs("max_tokens", "max_num_seqs", "pool_runs_short", "prompts_are_cut", "stop_token_ids", "event"),
    _lines,
)


def require_one_ahead(answer: type[Stage]) -> None:
    """Raise Wrong unless the stage launches one step ahead, whatever comes."""
    require_stage(answer, "TakingTurns", "ahead")
    ONE_AHEAD(answer)
