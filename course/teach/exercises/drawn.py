"""Comparison of an answer with a reference on many small cases; it tells the smallest one on which they differ.

    CASES = [*EDGES, *draw(lambda rng: (rng.randint(1, 6), lengths(rng)))]
    MISTAKES = {"pads are made by zeros": with_pads}
    register("01.1", Comparison(CASES, Expected(right, MISTAKES), inputs("num_layers", "lengths")))

A case is the tuple of an answer's arguments. The answer gets copies of them, and must not change their lists. Edges are
listed on purpose; the other cases are drawn, the same ones each time. A mistake is named only when it explains every
case that differs. What an answer prints is shown only for the case that is told.
"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from .explain import explain_value, plain
from .wrong import Failed, Wrong

FEWEST = 50  # cases of an exercise
CHANGED = "what you return is right, and you have changed what you were called with, which is the caller's: make a copy"

Case = tuple[Any, ...]
Call = Callable[..., Any]  # (answer, *case) -> what is compared: a value, or a dict of values by name
Describe = Callable[..., str]  # (*case) -> the inputs, as the learner reads them


@dataclass(frozen=True)
class Expected:
    """What is right for a case. mistakes: maps why an answer is wrong to a function that gives that wrong answer.

    explain(got, want) returns a sentence, or None when they are the same.
    """

    right: Callable[..., Any]
    mistakes: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    explain: Callable[[Any, Any], str | None] = explain_value


def draw(make: Callable[[random.Random], Case], number: int = FEWEST, seed: int = 0) -> list[Case]:
    """Draw `number` cases, the same ones for the same seed."""
    rng = random.Random(seed)
    return [make(rng) for _ in range(number)]


@dataclass(frozen=True)
class Comparison:
    """Checker that raises Wrong about the smallest case on which an answer is not as expected: inputs, value and why.

    expected: for the one value that `call` gives, or for several values by name.
    call: what to do with an answer. By default it is called with the case, and returns the value, or a tuple of values.
    A call may raise Wrong for what a comparison would not show.
    """

    cases: Sequence[Case]
    expected: Expected | Mapping[str, Expected]
    describe: Describe
    call: Call | None = None

    @property
    def parts(self) -> Mapping[str, Expected]:
        """What is expected for each value, by name. A single value has the name ""."""
        return self.expected if isinstance(self.expected, Mapping) else {"": self.expected}

    @cached_property
    def ordered(self) -> list[Case]:
        return _from_small_to_large(self.cases)

    @cached_property
    def rights(self) -> list[dict[str, Any]]:
        """What is right in each case, by name: worked out once for all answers."""
        return [{name: part.right(*case) for name, part in self.parts.items()} for case in self.ordered]

    def __call__(self, answer: Callable[..., Any], call: Call | None = None) -> None:
        """Check an answer. call: used instead of this comparison's own, when more than the case is needed."""
        call = call or self.call or (_call if "" in self.parts else values_of(*self.parts))
        tried, refused = _try_all(answer, self.ordered, self.describe, call)
        for t, right in zip(tried, self.rights, strict=False):
            for name, part in self.parts.items():
                if message := _explained(part, name, t.value(name), right[name]):
                    results = zip(tried, self.rights, strict=False)
                    why = _why(part, [(other.case, other.value(name), want[name]) for other, want in results])
                    t.tell(Wrong(": ".join(filter(None, (self.describe(*t.case), name, message, why)))))
        if refused is not None:
            refused.tell(refused.got)
        for t in tried:
            if t.is_changed:
                t.tell(Wrong(f"{self.describe(*t.case)}: {CHANGED}"))


def inputs(*names: str) -> Describe:
    """Describe a case by the names of its values: "lengths=[3], block_size=4"."""
    return lambda *case: ", ".join(f"{name}={value}" for name, value in zip(names, case, strict=True))


def part(function: Callable[..., Any], key: Any) -> Callable[..., Any]:
    """Make a function that returns one part of what `function` returns: element `key` of a tuple, or a dict's value."""
    return lambda *case: function(*case)[key]


def require_all(cases: Iterable[Case], judge: Callable[..., str | None], describe: Describe) -> None:
    """Raise Wrong about the smallest case for which judge(*case) returns what is wrong, or raises an error.

    No case is tried after it, so a judge may take longer than an answer to compare.
    """
    _, refused = _try_all(judge, _from_small_to_large(cases), describe, _judge)
    if refused is not None:
        refused.tell(refused.got)


def _judge(judge: Callable[..., str | None], *case: Any) -> None:
    if message := judge(*case):
        raise Wrong(message)


def _call(answer: Callable[..., Any], *case: Any) -> Any:
    return answer(*case)


def _from_small_to_large(cases: Iterable[Case]) -> list[Case]:
    cases = sorted(cases, key=size)
    assert len(cases) >= FEWEST, f"{len(cases)} cases, an exercise wants {FEWEST}"
    return cases


@dataclass(frozen=True)
class _Tried:
    case: Case
    got: Any
    printed: str
    is_changed: bool = False  # whether the answer has changed what it was called with

    def value(self, name: str) -> Any:
        return self.got[name] if name else self.got

    def tell(self, wrong: Wrong) -> NoReturn:
        print(self.printed, end="")
        raise wrong


def _try_all(
    answer: Callable[..., Any], cases: list[Case], describe: Describe, call: Call
) -> tuple[list[_Tried], _Tried | None]:
    """Call the answer on each case up to the first that fails; return those before, and it with its Wrong, or None."""
    tried: list[_Tried] = []
    for case in cases:
        printed, handed = io.StringIO(), copy.deepcopy(case)
        try:
            with redirect_stdout(printed):
                got = call(answer, *handed)
        except Exception as error:
            return tried, _Tried(case, refusal(describe(*case), error), printed.getvalue())
        tried.append(_Tried(case, got, printed.getvalue(), _differ(case, handed)))
    return tried, None


def _differ(case: Case, handed: Case) -> bool:
    """Whether a list or a dict of the case has been changed. Objects and tensors are not looked at. NaN equals NaN."""
    pairs = [(plain(was), plain(now)) for was, now in zip(case, handed, strict=True) if isinstance(was, (list, dict))]
    return any(was != now and repr(was) != repr(now) for was, now in pairs)


def refusal(inputs: str, error: Exception) -> Wrong:
    """Say on which inputs a call has failed: because of what Wrong or Failed says, or else by an error of its own."""
    if isinstance(error, Failed):
        return Failed(f"{inputs}: {error}", error.error)
    return Wrong(f"{inputs}: {error}") if isinstance(error, Wrong) else Failed(inputs, error)


def _explained(part: Expected, name: str, got: Any, want: Any) -> str | None:
    """Explain the difference; among several values, a None does not mean that a `return` is missing."""
    return f"you return None, expected {want}" if name and got is None is not want else part.explain(got, want)


def _why(part: Expected, results: list[tuple[Case, Any, Any]]) -> str:
    """Find the mistake that explains the answer in every case, or else in every case that is wrong; "" for none.

    results: of each case what the answer gave, and what is right.

    A truth value has only one other, so that many mistakes would explain the wrong ones alone.
    """

    def explains(mistaken: Callable[..., Any], results: list[tuple[Case, Any, Any]]) -> bool:
        try:
            return all(part.explain(got, mistaken(*case)) is None for case, got, _ in results)
        except Exception:  # this mistake ends in an error where the answer gives a value
            return False

    wrong: list[tuple[Case, Any, Any]] = []
    right: list[tuple[Case, Any, Any]] = []
    for case, got, want in results:
        (wrong if part.explain(got, want) else right).append((case, got, want))
    are_truths = all(isinstance(want, bool) for _, _, want in wrong)
    fitting = {why: mistaken for why, mistaken in part.mistakes.items() if explains(mistaken, wrong)}
    in_every_case = (why for why, mistaken in fitting.items() if explains(mistaken, right))
    return next(in_every_case, "" if are_truths else next(iter(fitting), ""))


def size(value: Any) -> float:
    """Measure the work of a case by hand: a number counts by its value, anything else by its elements."""
    if isinstance(value, bytes):
        return len(value)
    if hasattr(value, "numel"):
        return value.numel()
    if isinstance(value, (int, float)):
        return abs(value)
    if isinstance(value, slice):
        return size((value.start, value.stop))
    if isinstance(value, Mapping):
        return size(list(value.items()))
    if isinstance(value, (list, tuple)):
        return len(value) + sum(map(size, value))
    return 0


def dict_of(*keys: str) -> Call:
    """Make a call for answers that return a dict with these keys."""

    def call(answer: Callable[..., Any], *case: Any) -> dict[str, Any]:
        got = answer(*case)
        if not isinstance(got, Mapping) or set(got) != set(keys):
            raise Wrong(f"expected a dict with the keys {', '.join(map(repr, keys))}, got {got!r}")
        return dict(got)

    return call


def values_of(*names: str) -> Call:
    """Make a call for answers that return a value for each name: in a tuple, a list or an array."""

    def call(answer: Callable[..., Any], *case: Any) -> dict[str, Any]:
        got = answer(*case)
        values = plain(got)
        if not isinstance(values, list) or len(values) != len(names):
            raise Wrong(f"expected ({', '.join(names)}), got {got!r}")
        return dict(zip(names, values, strict=True))

    return call
