"""Checkers of lesson 22: a score, a judge, a policy counted in steps, and an entry that is run."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import mean, median, median_low
from typing import Any

from course.contest import Policy, Workload, first_entry
from course.contest.workload import Length

from ..exercises.drawn import Comparison, Expected, draw, inputs, values_of
from ..exercises.exercise import exercise, register
from ..exercises.policy_keys import request, require_keys
from ..exercises.wrong import Wrong
from .contest_cell import as_file
from .step_counts import BrokenRule, count_steps
from .trial_run import mistake_of

# 22.1

Times = list[float]


def right_ratio(baseline: Times, own: Times) -> float:
    return median(baseline) / median(own)


def right_verdict(baseline: Times, own: Times) -> str:
    if max(own) < min(baseline):
        return "faster"
    return "slower" if min(own) > max(baseline) else "overlap"


def _by_ratio(baseline: Times, own: Times) -> str:
    ratio = right_ratio(baseline, own)
    return "faster" if ratio > 1 else "slower" if ratio < 1 else "overlap"


def _touching(baseline: Times, own: Times) -> str:
    if max(own) <= min(baseline):
        return "faster"
    return "slower" if min(own) >= max(baseline) else "overlap"


RATIO_MISTAKES: dict[str, Callable[[Times, Times], float]] = {
    "that is the entry's time over the baseline's: half of the time is a score of 2": lambda b, o: (
        median(o) / median(b)
    ),
    "one slow run moves a mean as far as it likes: take the median": lambda b, o: mean(b) / mean(o),
    "the fastest run is one run: take the median of all": lambda b, o: min(b) / min(o),
    "the ratio of the medians, not the median of the ratios": lambda b, o: median(
        [x / y for x, y in zip(b, o, strict=True)]
    ),
    "of an even number of runs the median is the mean of the two in the middle": lambda b, o: (
        median_low(b) / median_low(o)
    ),
    "runs come in the order in which they were measured: sort them before you take the middle": lambda b, o: (
        b[len(b) // 2] / o[len(o) // 2]
    ),
}
VERDICT_MISTAKES: dict[str, Callable[[Times, Times], str]] = {
    "a ratio above 1 is no verdict: some of the entry's runs took as long as some of the baseline's": _by_ratio,
    "ranges that touch overlap: two runs took equally long": _touching,
    "times, not speeds: the entry is faster when its longest run took less time than the shortest": lambda b, o: (
        right_verdict(o, b)
    ),
    "an entry can be slower, too": lambda b, o: "overlap" if right_verdict(b, o) == "slower" else right_verdict(b, o),
    "every run against every run, not run 1 against run 1": lambda b, o: (
        "faster"
        if all(y < x for x, y in zip(b, o, strict=True))
        else "slower"
        if all(y > x for x, y in zip(b, o, strict=True))
        else "overlap"
    ),
}


def _draw_times(rng: Random) -> tuple[Times, Times]:
    number, shift, unit = rng.choice((*range(1, 8), 12)), rng.choice((-8, -4, -1, 0, 1, 4, 8)), rng.choice(UNITS)
    return (
        [(rng.randint(8, 16) + 8) * unit for _ in range(number)],
        [(max(1, rng.randint(8, 16) + shift) + 8) * unit for _ in range(number)],
    )


UNITS = (1 / 8, 1 / 8, 1 / 2)  # of the times, in seconds: with the last one, some runs take 10 s and more


TIMES: list[tuple[Times, Times]] = [
    ([1.0], [1.0]),
    ([2.0], [1.0]),
    ([1.0], [2.0]),
    ([1.0, 1.5], [0.5, 1.0]),
    ([1.0, 1.5], [1.5, 2.0]),
    ([1.0, 4.0], [0.5, 2.0]),
    ([2.0, 2.0, 9.0], [1.0, 1.0, 1.0]),
    ([4.0, 1.0, 2.0], [2.0, 4.0, 1.0]),
    *draw(_draw_times, 60),
]
register(
    "22.1",
    Comparison(
        TIMES,
        {
            "score": Expected(right_ratio, RATIO_MISTAKES),
            "verdict": Expected(right_verdict, VERDICT_MISTAKES),
        },
        inputs("baseline", "own"),
        call=values_of("score", "verdict"),
    ),
)

# 22.2

Tokens = list[int]
Requests = list[tuple[Tokens, int]]
VOCAB = 9


def next_token(token_ids: Tokens) -> int:
    """Compute the next token of a toy model that depends on all of a text, and on its order."""
    state = len(token_ids)
    for token in token_ids:
        state = (5 * state + token + 1) % 97
    return state % VOCAB


def continued(prompt: Tokens, num_tokens: int) -> Tokens:
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(next_token(text))
    return text[len(prompt) :]


def _wrong_by(is_wrong: Callable[[Tokens, int, Tokens], bool]) -> Callable[[Requests, list[Tokens]], list[int]]:
    def judged(requests: Requests, answers: list[Tokens]) -> list[int]:
        return [
            i for i, ((prompt, n), own) in enumerate(zip(requests, answers, strict=True)) if is_wrong(prompt, n, own)
        ]

    return judged


right_wrong = _wrong_by(lambda prompt, n, own: own != continued(prompt, n))
JUDGE_MISTAKES: dict[str, Callable[[Requests, list[Tokens]], Any]] = {
    "too few tokens are wrong, too: zip stops with the shorter list": _wrong_by(
        lambda prompt, n, own: len(own) > n or own != continued(prompt, len(own))
    ),
    "too many tokens are wrong, too": _wrong_by(lambda prompt, n, own: own[:n] != continued(prompt, n)),
    "the number of tokens has to be max_tokens": _wrong_by(lambda prompt, n, own: own != continued(prompt, len(own))),
    "right tokens in another order are wrong": _wrong_by(
        lambda prompt, n, own: sorted(own) != sorted(continued(prompt, n))
    ),
    "all tokens of an answer count, not the first ones alone": _wrong_by(
        lambda prompt, n, own: len(own) != n or own[:1] != continued(prompt, n)[:1]
    ),
    "all tokens count, not the last one alone": _wrong_by(
        lambda prompt, n, own: len(own) != n or own[-1:] != continued(prompt, n)[-1:]
    ),
    "as many tokens as were asked for can still be wrong ones": _wrong_by(lambda prompt, n, own: len(own) != n),
    "every token is chosen after the prompt and the tokens before it, not after the prompt alone": _wrong_by(
        lambda prompt, n, own: own != [next_token(prompt)] * n
    ),
    "the model sees the whole text, not the answer alone": _wrong_by(
        lambda prompt, n, own: len(own) != n or any(next_token(own[:i]) != own[i] for i in range(1, n))
    ),
    "an answer belongs to its own request: those of another one are wrong": lambda requests, answers: [
        i
        for i, own in enumerate(answers)
        if own not in [continued(prompt, n) for prompt, n in requests]
    ],
    "return the wrong ones, not the right ones": lambda requests, answers: [
        i for i in range(len(answers)) if i not in right_wrong(requests, answers)
    ],
    "return the numbers of all wrong requests, not of the first one": lambda requests, answers: right_wrong(
        requests, answers
    )[:1],
    "numbers count from 0": lambda requests, answers: [i + 1 for i in right_wrong(requests, answers)],
}  # fmt: skip


def _draw_answers(rng: Random) -> tuple[Requests, list[Tokens]]:
    requests = [
        ([rng.randrange(VOCAB) for _ in range(rng.randint(1, 4))], rng.randint(1, 5)) for _ in range(rng.randint(1, 5))
    ]
    answers = [continued(prompt, n) for prompt, n in requests]
    for own in answers:
        planted = rng.choice(("", "", "", "one", "short", "long", "turned", "last"))
        if planted in ("one", "last"):
            place = rng.randrange(len(own)) if planted == "one" else -1
            own[place] = (own[place] + rng.randint(1, VOCAB - 1)) % VOCAB
        elif planted == "short":
            own.pop()
        elif planted == "long":
            own.append(rng.randrange(VOCAB))
        elif planted == "turned":
            own.reverse()
    if len(answers) > 1 and rng.random() < 0.3:
        answers[0], answers[1] = answers[1], answers[0]
    return requests, answers


JUDGED: list[tuple[Requests, list[Tokens]]] = [
    ([], []),
    ([([1], 2)], [continued([1], 2)]),
    ([([1], 2)], [continued([1], 1)]),
    ([([1], 2)], [continued([1], 3)]),
    ([([1], 2)], [[]]),
    ([([1], 3), ([2], 3)], [continued([2], 3), continued([1], 3)]),
    ([([1], 2), ([1], 2)], [continued([1], 2), continued([1], 2)]),
    ([([1], 20), ([2], 20)], [[*continued([1], 19), 9], continued([2], 20)]),  # wrong at the end of a long answer
    *draw(_draw_answers, 80),
]
register(
    "22.2",
    Comparison(
        JUDGED,
        Expected(right_wrong, JUDGE_MISTAKES),
        inputs("requests", "answers"),
        call=lambda answer, requests, answers: answer(next_token, requests, answers),
    ),
)

# 22.3

GAIN = 0.1  # of the steps of first come, first served
DRAWN = (1, 2, 5, 8)  # runs on which the order of arrival is no good one by chance


@exercise("22.3")
def fewer_steps(answer: type[Policy]) -> None:
    if not (isinstance(answer, type) and issubclass(answer, Policy)):
        raise Wrong(f"expected a subclass of Policy, got {answer!r}")
    require_keys(answer())
    for seed in DRAWN:
        first_come, found = count_steps("fcfs", seed), _steps_with(answer, seed)
        if found > (1 - GAIN) * first_come:
            raise Wrong(
                f"run {seed}: {found} steps, expected at most {int((1 - GAIN) * first_come)}; first come, first "
                f"served takes {first_come}{_why_not_fewer(answer)}"
            )


def _steps_with(answer: type[Policy], seed: int) -> int:
    try:
        return count_steps(answer(), seed)
    except BrokenRule as error:
        raise Wrong(f"run {seed}: {error}") from None


def _why_not_fewer(policy: type[Policy]) -> str:
    key = policy().key

    if key(request(5, 3)) < key(request(5, 60)):
        return ": the longest outputs begin last, and run on alone at the end"
    if key(request(5, 3)) == key(request(5, 60)):
        return ": key does not tell long outputs from short ones"
    if key(request(5, 30)) > key(request(100, 10)):
        return ": max_len counts the prompt, too, and a long prompt is no long output"
    return ""


# 22.4

TRIAL = Workload("trial", "", (Length("plain", 12, 6), Length("repeating", 20, 8), Length("shared", 70, 4)))


def same_code(one: str, other: str) -> bool:
    """Tell whether two files differ in comments and spaces alone."""
    return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))


@exercise("22.4")
def own_entry(answer: str) -> None:
    if not isinstance(answer, str):
        raise Wrong(f"expected the name of a file or its text, got {answer!r:.100}")
    try:
        file = as_file(answer)
    except ValueError as error:
        raise Wrong(str(error)) from None
    if same_code(file.source, Path(first_entry.__file__).read_text(encoding="utf-8")):
        raise Wrong("it is the entry that `roseinfer contest new` writes: change one thing")
    if mistake := mistake_of(file, TRIAL):
        raise Wrong(mistake)
