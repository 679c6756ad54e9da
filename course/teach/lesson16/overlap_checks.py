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

Overlap = stages_package().Overlap
PROMPTS = [[7] * 3, list(range(1, 22)), [11, 12], [13], [5, 6, 7, 8, 9]]
# The budget is so small that the longest prompt is cut.
SIZES: dict[str, int] = {"num_blocks": 40, "block_size": 4, "max_num_batched_tokens": 16}
MOST_CALLS = 60


class AnotherError(BaseException):
    """An error that no list of the usual kinds has."""


KINDS = {kind.__name__: kind for kind in (RuntimeError, ValueError, KeyboardInterrupt, AnotherError, OutOfBlocks)}
WATCHED = ("schedule", "launch", "finish", "drop")
EVENTS = [f"{kind} from {origin}" for kind in KINDS for origin in WATCHED[:3]]
EVENTS.remove("OutOfBlocks from launch")  # only schedule says when it comes
# max_tokens of each request, max_num_seqs, stop tokens, the call in which something happens, and what happens:
# "abort" of all that run, "RuntimeError from finish", or "nothing".
Case = tuple[tuple[int, ...], int, tuple[int, ...], int, str]


@lru_cache(maxsize=1000)
def _calls(
    answer: type[Stage], max_tokens: tuple[int, ...], places: int, stops: tuple[int, ...], at: int, event: str
) -> list[str]:
    """Say what each call of step() does until all requests have ended, and then the first one with new requests."""
    stage: Any = answer(drawn_model(1), max_num_seqs=places, **SIZES)
    kind, _, origin = event.partition(" from ")
    error = KINDS[kind](event) if origin else None
    number, lines, seqs = 0, list[str](), list[Sequence]()

    def watched(name: str) -> Any:
        method = getattr(Overlap, name)

        def watch(*args: Any, **kwargs: Any) -> Any:
            if name in ("launch", "finish") or (name == "drop" and stage.in_flight):
                lines.append(f"call {number} of step() calls {name}()")
            if error and name == origin and number == at:
                raise error
            return method(*args, **kwargs)

        return watch

    for most_calls in (MOST_CALLS, 1):
        for prompt, n in zip(PROMPTS, max_tokens, strict=False):
            seqs.append(Sequence(prompt, SamplingParams(max_tokens=n, ignore_eos=True, stop_token_ids=stops)))
            stage.add(seqs[-1])
        for _ in range(most_calls):
            if not stage.has_work:
                break
            number += 1
            for seq in list(stage.running) if event == "abort" and number == at else ():
                stage.abort(seq)
            with patch.multiple(Overlap, **{name: watched(name) for name in WATCHED}):
                end = _end_of_call(stage, seqs, error)
            lines.append(f"call {number} of step() {end}")
    return [*lines, *(f"request {i} has {seq.output_ids}" for i, seq in enumerate(seqs))]


def _end_of_call(stage: Any, seqs: list[Sequence], error: BaseException | None) -> str:
    """Call step(), and say what it returns, or that it raises an error, and what is in flight and queued then."""
    try:
        done = stage.step()
    except BaseException as raised:
        if not isinstance(raised, (type(error), OutOfBlocks)):
            raise
        which = "that error" if raised is error else f"another error, {type(raised).__name__}"
        queue = [seqs.index(seq) for seq in (*stage.running, *stage.waiting)]
        return f"raises {which}, {len(stage.in_flight)} steps in flight, requests queued: {queue}"
    known = isinstance(done, list) and all(seq in seqs for seq in done)
    return f"returns requests {sorted(map(seqs.index, done))}" if known else f"returns {done!r}"


def _explain(got: list[str], want: list[str]) -> str | None:
    for mine, right in zip_longest(got, want, fillvalue="nothing more"):
        if mine != right:
            return f"{mine}; expected: {right}"
    return None


def _draw_case(rng: Random) -> Case:
    max_tokens = tuple(rng.randint(3, 6) for _ in range(rng.randint(1, 5)))
    event = rng.choice(("nothing", "abort", rng.choice(EVENTS), rng.choice(EVENTS)))
    return max_tokens, rng.randint(1, 3), tuple(rng.sample(range(31), rng.choice((0, 0, 6)))), rng.randint(1, 4), event


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
    "on any error call drop(), which discards the steps in flight": {"self.drop()": "pass"},
    "Ctrl-C is a KeyboardInterrupt: `except Exception` lets it pass": {"BaseException": "Exception"},
    "the caller of step() has to get the same error": {"raise": "return []"},
}
OWN = {"TakingTurns": Overlap, "OutOfBlocks": OutOfBlocks}
ONE_AHEAD = Comparison(
    draw(_draw_case, 80),
    as_solved("16.4", MISTAKES, _explain, _calls, suppress=suppress, nullcontext=nullcontext, **OWN),
    inputs("max_tokens", "max_num_seqs", "stop_token_ids", "in call", "event"),
    _calls,
)


def require_one_ahead(answer: type[Stage]) -> None:
    """Raise Wrong unless the stage launches one step ahead, whatever comes."""
    require_stage(answer, "TakingTurns", "ahead")
    ONE_AHEAD(answer)
