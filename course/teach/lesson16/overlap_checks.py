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
SIZES: dict[str, int] = {
    "num_blocks": 40,
    "block_size": 4,
    "max_num_batched_tokens": 16,
}  # so that the longest prompt is cut
MOST_CALLS = 60
ORIGINS = ("schedule", "launch", "finish")  # of an error


class AnotherError(BaseException):
    """An error that is neither an Exception nor a KeyboardInterrupt, so no list of the usual kinds catches it."""


KINDS = {kind.__name__: kind for kind in (RuntimeError, ValueError, KeyboardInterrupt, OutOfBlocks, AnotherError)}
# max_tokens of each request, max_num_seqs, stop tokens, and what happens when: "abort before call 3", "RuntimeError
# from finish in call 2", or "".
Case = tuple[tuple[int, ...], int, tuple[int, ...], str]


@lru_cache(maxsize=1000)
def _calls(
    answer: type[Stage], max_tokens: tuple[int, ...], places: int, stops: tuple[int, ...], event: str
) -> list[str]:
    """Say what each call of step() does until all requests have ended, and then the first one with new requests."""
    stage: Any = answer(drawn_model(1), max_num_seqs=places, **SIZES)
    kind, _, when = event.partition(" ")
    error = KINDS[kind](event) if kind in KINDS else None
    seqs: list[Sequence] = []
    lines: list[str] = []
    for most_calls in (MOST_CALLS, 1):
        for prompt, n in zip(PROMPTS, max_tokens, strict=False):
            seqs.append(Sequence(prompt, SamplingParams(max_tokens=n, ignore_eos=True, stop_token_ids=stops)))
            stage.add(seqs[-1])
        for _ in range(most_calls):
            if not stage.has_work:
                break
            if event == f"abort before call {len(lines) + 1}":
                for seq in list(stage.running):
                    stage.abort(seq)
            lines.append(_call(stage, seqs, len(lines) + 1, when, error))
    return [*lines, *(f"request {i} has {seq.output_ids}" for i, seq in enumerate(seqs))]


def _calls_of_mistake(answer: type[Stage], *case: Any) -> list[str]:
    try:
        return _calls(answer, *case)
    except Exception as error:
        return [repr(error)]


def _call(stage: Any, seqs: list[Sequence], number: int, when: str, error: BaseException | None) -> str:
    """Call step() once, raise the error if it is due in this call, and say which methods were called, and the end."""
    called = [f"call {number} of step()"]

    def watched(name: str) -> Any:
        method = getattr(Overlap, name)

        def watch(stage: Any, *args: Any, **kwargs: Any) -> Any:
            if name in ("launch", "finish") or (name == "drop" and stage.in_flight):
                called.append(f"{name}()")
            if error and when == f"from {name} in call {number}":
                raise error
            return method(stage, *args, **kwargs)

        return watch

    try:
        with patch.multiple(Overlap, **{name: watched(name) for name in (*ORIGINS, "drop")}):
            done = stage.step()
    except BaseException as raised:
        is_due = error is not None and error.__traceback__ is not None  # it has been raised, now or in an earlier call
        if not is_due and not isinstance(raised, OutOfBlocks):
            raise
        which = "that error" if raised is error else f"another error, {type(raised).__name__}"
        queue = [seqs.index(seq) for seq in (*stage.running, *stage.waiting)]
        end = f"raises {which}, {len(stage.in_flight)} steps in flight, requests queued: {queue}"
    else:
        known = isinstance(done, list) and all(seq in seqs for seq in done)
        end = f"returns requests {sorted(map(seqs.index, done))}" if known else f"returns {done!r}"
    return ", ".join([*called, end])


def _explain(got: list[str], want: list[str]) -> str | None:
    for mine, right in zip_longest(got, want, fillvalue="nothing more"):
        if mine != right:
            return f"{mine}; expected: {right}"
    return None


def _draw_case(rng: Random) -> Case:
    max_tokens = tuple(rng.randint(3, 6) for _ in range(rng.randint(1, 5)))
    error = f"{rng.choice([*KINDS])} from {rng.choice(ORIGINS)} in call {rng.randint(1, 3)}"
    event = rng.choice(("", f"abort before call {rng.randint(2, 5)}", error, error))
    return max_tokens, rng.randint(1, 3), tuple(rng.sample(range(31), rng.choice((0, 0, 6)))), event


EVENTS = [*(f"{kind} from finish in call 2" for kind in KINDS), "OutOfBlocks from schedule in call 1"]
CASES: list[Case] = [((4, 4), 4, (), ""), *(((5, 5, 5), 2, (), event) for event in EVENTS), *draw(_draw_case, 48)]
FINISH = "return self.finish() if was_in_flight else []"
AHEAD = "suppress(OutOfBlocks) if was_in_flight else nullcontext()"
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
}
NAMES = {"TakingTurns": Overlap, "OutOfBlocks": OutOfBlocks, "suppress": suppress, "nullcontext": nullcontext}
ONE_AHEAD = Comparison(
    CASES,
    as_solved("16.4", MISTAKES, _explain, _calls_of_mistake, **NAMES),
    inputs("max_tokens", "max_num_seqs", "stop_token_ids", "event"),
    _calls,
)


def require_one_ahead(answer: type[Stage]) -> None:
    """Raise Wrong unless the stage launches one step ahead, whatever comes."""
    require_stage(answer, "TakingTurns", "ahead")
    ONE_AHEAD(answer)
