"""Checkers of lesson 22: a score, a judge, a choice among settings, and an entry that is run."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from course.contest import Workload, first_entry
from course.contest.workload import Length

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.wrong import Wrong
from .contest_cell import as_file
from .trial_run import mistake_of

# 22.1

Times = list[float]
RATIO = "median(baseline) / median(own)"
IS_FASTER, IS_SLOWER = "max(own) < min(baseline)", "min(own) > max(baseline)"
SCORE_MISTAKES = {
    "score": {
        "that is the entry's time over the baseline's: half of the time is a score of 2": {
            RATIO: "median(own) / median(baseline)"
        },
        "one slow run moves a mean as far as it likes: take the median": {"median": "mean"},
        "the ratio of the medians, not the median of the ratios": {
            RATIO: "median(b / o for b, o in zip(baseline, own, strict=True))"
        },
        "runs come in the order in which they were measured: sort them before you take the middle": {
            RATIO: "baseline[len(baseline) // 2] / own[len(own) // 2]"
        },
    },
    "verdict": {
        "a ratio above 1 is no verdict: some of the entry's runs took as long as some of the baseline's": {
            IS_FASTER: "ratio > 1",
            IS_SLOWER: "ratio < 1",
        },
        "ranges that touch overlap: two runs took equally long": {"<": "<=", ">": ">="},
        "times, not speeds: the entry is faster when its longest run took less time than the shortest": {
            f"{RATIO}\n": f"{RATIO}\n    baseline, own = own, baseline\n"
        },
        "every run against every run, not run 1 against run 1": {
            IS_FASTER: "all(o < b for b, o in zip(baseline, own, strict=True))",
            IS_SLOWER: "all(o > b for b, o in zip(baseline, own, strict=True))",
        },
    },
}


def _draw_times(rng: Random) -> tuple[Times, Times]:
    """Draw as many times for both; in the largest unit some runs take 10 s and more."""
    number, shift, unit = (
        rng.choice((*range(1, 8), 12)),
        rng.choice((-8, -4, -1, 0, 1, 4, 8)),
        rng.choice((1, 1, 4)) / 8,
    )
    own = [(max(1, rng.randint(8, 16) + shift) + 8) * unit for _ in range(number)]
    return [rng.randint(16, 24) * unit for _ in range(number)], own


TIMES = [([1.0], [2.0]), *draw(_draw_times, 60)]
register("22.1", Comparison(TIMES, as_solved_by_name("22.1", SCORE_MISTAKES), inputs("baseline", "own")))

# 22.2

Tokens = list[int]
Requests = list[tuple[Tokens, int]]
VOCAB = 9
DIFFER, RIGHT = "list(answers[i]) != text[len(prompt) :]", "text[len(prompt) :]"
JUDGE_MISTAKES = {
    "the number of tokens has to be max_tokens: zip stops with the shorter list": {
        DIFFER: f"any(one != other for one, other in zip(answers[i], {RIGHT}))"
    },
    "as many tokens as were asked for can still be wrong ones": {DIFFER: "len(answers[i]) != max_tokens"},
    "every token is chosen after the prompt and the tokens before it, not after the prompt alone": {
        "next_token(text)": "next_token(prompt)"
    },
    "the model sees the whole text, not the answer alone": {"next_token(text)": f"next_token({RIGHT} or prompt)"},
    "return the numbers of all wrong requests, not of the first one": {"wrong.append(i)": "return [i]"},
    "numbers count from 0": {"append(i)": "append(i + 1)"},
}


def _next_token(token_ids: Tokens) -> int:
    """Compute the next token of a toy model that depends on all of a text, and on its order."""
    state = len(token_ids)
    for token in token_ids:
        state = (5 * state + token + 1) % 97
    return state % VOCAB


def _judged(answer: Callable[..., Any], requests: Requests, answers: list[Tokens]) -> Any:
    return answer(_next_token, requests, answers)


def _continued(prompt: Tokens, num_tokens: int) -> Tokens:
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(_next_token(text))
    return text[len(prompt) :]


def _draw_answers(rng: Random) -> tuple[Requests, list[Tokens]]:
    """Draw requests with answers, some with a token that is wrong, lacking or too many, some in another order."""
    requests = [
        ([rng.randrange(VOCAB) for _ in range(rng.randint(1, 4))], rng.randint(1, rng.choice((5, 5, 20))))
        for _ in range(rng.randint(1, 5))
    ]
    answers = [_continued(prompt, n) for prompt, n in requests]
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


JUDGED = [([], []), *draw(_draw_answers, 80)]
register(
    "22.2",
    Comparison(JUDGED, as_solved("22.2", JUDGE_MISTAKES, call=_judged), inputs("requests", "answers"), call=_judged),
)

# 22.3

Samples = dict[str, Times]
CHOSEN, AGAIN = (
    "statistics.median(first[name])",
    'statistics.median(second["baseline"]) / statistics.median(second[name])',
)
CHOICE_MISTAKES = {
    "name": {
        "the fastest run of many is luck: compare medians": {CHOSEN: "min(first[name])"},
        "one slow run moves a mean as far as it likes: compare medians": {
            CHOSEN: "sum(first[name]) / len(first[name])"
        },
        "second is there for the score alone: choose by first": {CHOSEN: "statistics.median(second[name])"},
        "then no runs are left that know nothing of the choice: choose by first": {
            CHOSEN: "statistics.median(first[name] + second[name])"
        },
        "the baseline takes part: no setting may be better than it": {
            "min(first,": "min((own for own in first if own != 'baseline'),"
        },
        "the smallest time is the best": {"min(first,": "max(first,"},
    },
    "score": {
        "these are the runs by which it was chosen, so its luck is in the score: take those of second": {
            AGAIN: AGAIN.replace("second", "first")
        },
        "the machine was another one that day: compare with the baseline of second": {
            AGAIN: AGAIN.replace('second["baseline"]', 'first["baseline"]')
        },
        "that is the setting's time over the baseline's: half of the time is a score of 2": {
            AGAIN: 'statistics.median(second[name]) / statistics.median(second["baseline"])'
        },
    },
}


def _draw_samples(rng: Random) -> tuple[Samples, Samples]:
    """Draw two measurements of the same settings, in another order and with another number of runs."""
    names = ["baseline", *rng.sample("abcdef", rng.randint(1, 5))]

    def measured(number: int) -> Samples:
        order = rng.sample(names, len(names))
        return {name: [rng.randint(4, 12) / 4 for _ in range(number)] for name in order}

    return measured(rng.randint(1, 5)), measured(rng.randint(1, 5))


SAMPLES = draw(_draw_samples, 120)
register("22.3", Comparison(SAMPLES, as_solved_by_name("22.3", CHOICE_MISTAKES), inputs("first", "second")))

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
