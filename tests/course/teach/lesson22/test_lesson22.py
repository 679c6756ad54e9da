"""Lesson 22: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from course.contest import first_entry
from course.teach.exercises.solutions import solution
from course.teach.lesson22 import exercises
from course.teach.lesson22.step_counts import count_steps
from roseinfer.engine.policies import FirstCome
from roseinfer.engine.scheduler import Scheduler

# 22.1


test_wrong_scores = wrong_answers(
    "22.1",
    {
        "sorts in place": (
            solution("22.1", {"    ratio": "    baseline.sort()\n    own.sort()\n    ratio"}),
            "which is the caller's: make a copy",
        ),
        "other words": (solution("22.1", {'"overlap"': '"OVERLAP"'}), "expected 'overlap'"),
        "rounded": (solution("22.1", {"return ratio": "return round(ratio)"}), "expected 0.5"),
    },
)


def by_numpy(baseline, own):
    signs = np.sign(np.subtract.outer(baseline, own))
    verdict = {1.0: "faster", -1.0: "slower"}.get(float(signs.min())) if signs.min() == signs.max() else None
    return np.median(baseline) / np.median(own), verdict or "overlap"


test_right_scores = right_answers("22.1", {"NumPy": by_numpy, "a list": lambda *case: list(solution("22.1")(*case))})

# 22.2


judge = solution("22.2")

test_wrong_judges = wrong_answers(
    "22.2",
    {
        "booleans": (
            solution("22.2", {"return wrong": "return [i in wrong for i in range(len(requests))]"}),
            "you return [True], expected [0]",
        ),
        "changes the prompts": (
            solution("22.2", {"text = list(prompt)": "text = prompt", "text[len(prompt) :]": "text[-max_tokens:]"}),
            "which is the caller's: make a copy",
        ),
    },
)


def by_teacher_forcing(next_token, requests, answers):
    wrong = []
    for i, ((prompt, max_tokens), answer) in enumerate(zip(requests, answers, strict=True)):
        right = all(next_token(prompt + answer[:n]) == token for n, token in enumerate(answer))
        if not right or len(answer) != max_tokens:
            wrong.append(i)
    return tuple(wrong)


test_right_judges = right_answers(
    "22.2", {"one token after the other": by_teacher_forcing, "an array": lambda *case: np.array(judge(*case))}
)

# 22.3


test_wrong_choices = wrong_answers(
    "22.3",
    {
        "the runs by which it was chosen": (
            solution("22.3", {"second[": "first["}),
            "these are the runs by which it was chosen, so its luck is in the score",
        ),
        "all runs": (
            solution("22.3", {"median(first[name])": "median(first[name] + second[name])"}),
            "then no runs are left that know nothing of the choice",
        ),
        "without the baseline": (
            lambda first, second: solution("22.3")({n: t for n, t in first.items() if n != "baseline"}, second),
            "the baseline takes part",
        ),
        "the name alone": (lambda first, second: min(first), "expected (name, score)"),
        "the score of every setting": (
            lambda first, second: (solution("22.3")(first, second)[0], {name: 1.0 for name in first}),
            "score: expected a number, got dict",
        ),
    },
)


def by_numpy_medians(first, second):
    names = list(first)
    chosen = names[int(np.argmin([np.median(first[name]) for name in names]))]
    return [chosen, np.median(second["baseline"]) / np.median(second[chosen])]


def by_sorting(first, second):
    """Sort the settings, and take the middle of sorted samples, or of two their mean."""

    def middle(samples):
        samples = sorted(samples)
        return (samples[(len(samples) - 1) // 2] + samples[len(samples) // 2]) / 2

    chosen = sorted(first, key=lambda name: middle(first[name]))[0]
    return chosen, middle(second["baseline"]) / middle(second[chosen])


test_right_choices = right_answers("22.3", {"NumPy": by_numpy_medians, "sorted": by_sorting})


def test_fewer_steps_with_the_longest_output_first():
    for seed in (1, 5):
        assert count_steps("longest_output", seed) == 88
        assert count_steps("fcfs", seed) >= 100


# 22.4

HONEST = "from course.contest import Policy\nclass Mine(Policy):\n    def key(self, seq):\n        return 0\n"
STAGE = """
from stages.s06_block_table_cache import BlockTableCache
class Mine(BlockTableCache):
    {}
"""
PATCH = HONEST + "from roseinfer.engine.scheduler import Scheduler\nScheduler.preempt = lambda self, seq: None\n"
TEMPLATE = Path(first_entry.__file__).read_text(encoding="utf-8")
test_wrong_entries = wrong_answers(
    "22.4",
    {
        "a class": (FirstCome, "expected the name of a file or its text, got <class"),
        "no such file": ("no_such_entry.py", "file no_such_entry.py: there is no such file"),
        "no Python": ("class Mine(Policy)\n    pass\n", "entry.py, line 1: is no Python ("),
        "no class": ("key = 1\n", "has no class; an entry is a class derived from"),
        "two classes": (HONEST + HONEST.replace("Mine", "Other"), "has 2 entries, Mine, Other: keep one"),
        "another class": ("class Mine:\n    pass\n", "Mine is no entry: derive it from Policy"),
        "an error": ("1 / 0\n" + HONEST, "ZeroDivisionError: division by zero, in line 1"),
        "no such setting": (
            "from course.contest import Settings\nclass Mine(Settings):\n    settings = {'fast': True}\n",
            "EngineConfig has no argument 'fast'",
        ),
        "the first entry, with a comment": (
            TEMPLATE + "# mine\n",
            "it is the entry that `roseinfer contest new` writes",
        ),
        "wrong tokens": (STAGE.format("next_tokens = lambda self, seqs: [7] * len(seqs)"), ": token 1 is wrong"),
        "no end": (STAGE.format("has_work, add, step = True, print, print"), "not all requests have ended"),
    },
)
SETTINGS = "from course.contest import Settings\nclass Mine(Settings):\n    settings = {}\n"
test_right_entries = right_answers(
    "22.4",
    {
        "a policy": HONEST,
        "settings": SETTINGS.replace("{}", "{'enable_prefix_caching': True}"),
        "nothing changed": SETTINGS,
    },
)


def test_an_entry_that_changes_the_library_is_refused(monkeypatch):
    monkeypatch.setattr(Scheduler, "preempt", Scheduler.preempt)  # undone after the test
    with pytest.raises(exercises.Wrong, match="changed roseinfer.engine.scheduler.Scheduler.preempt: an entry leaves"):
        exercises.own_entry(PATCH)
