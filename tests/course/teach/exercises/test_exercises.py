"""The course's list of exercises: how they are graded, what each refuses, and which unusual answers it accepts."""

from __future__ import annotations

from itertools import groupby

import pytest
import wrong_answers

from course.teach.exercises.exercise import find_all
from course.teach.journal.exercise_grid import lesson_of

wrong_answers.register_all()

EXERCISES = {e.id: e for e in find_all()}
LESSONS = {lesson: list(group) for lesson, group in groupby(EXERCISES.values(), lesson_of)}
FEWEST_WRONG, FEWEST_RIGHT = 8, 2


@pytest.mark.parametrize("id", EXERCISES)
def test_an_exercise_refuses_eight_wrong_answers_with_messages_of_their_own(id):
    cases = wrong_answers.registered.get(id, {})
    messages = [*wrong_answers.named(id), *(message for _, message in cases.values())]
    assert len(messages) >= FEWEST_WRONG, f"{id}: add to its mistakes, or to wrong_answers({id!r}, ...) in its tests"
    assert len(set(messages)) >= FEWEST_WRONG // 2 and all(len(message) >= len("got None") for message in messages)


@pytest.mark.parametrize("id", EXERCISES)
def test_an_exercise_accepts_two_unusual_right_answers(id):
    cases = wrong_answers.accepted.get(id, {})
    assert len(cases) >= FEWEST_RIGHT, f"{id}: add to right_answers({id!r}, ...) in its tests"


def test_wrong_answers_are_registered_for_exercises_that_exist():
    assert wrong_answers.registered.keys() | wrong_answers.accepted.keys() <= EXERCISES.keys()


def test_a_case_cannot_take_the_place_of_another(monkeypatch):
    monkeypatch.setattr(wrong_answers, "registered", {})
    wrong_answers.wrong_answers("99.1", {"off by one": (1, "too low")})
    with pytest.raises(ValueError, match="new names, got off by one again"):
        wrong_answers.wrong_answers("99.1", {"off by one": (2, "too high")})


def test_an_answer_that_passes_or_is_not_judged_is_no_refusal():
    for answer in (lambda p, n: (sum(p + i for i in range(n)), p + n - 1), None):
        with pytest.raises(AssertionError):
            wrong_answers.assert_refused("00.1", answer, "")
    with pytest.raises(AssertionError):
        wrong_answers.assert_refused("00.1", lambda p, n: 1, "another message")


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_graded(lesson):
    """At least three exercises, an easy and short one and a harder and longer one among them."""
    exercises = LESSONS[lesson]
    difficulties = [e.difficulty for e in exercises]
    assert len(exercises) >= 3
    assert all(len(set(e.hints)) >= 3 for e in exercises)
    assert min(difficulties) <= 2 and min(difficulties) < max(difficulties)
    assert min(e.minutes for e in exercises) <= 10 < max(e.minutes for e in exercises)
    assert max(e.importance for e in exercises) >= 3, "one exercise that no learner should leave out"


def test_the_course_goes_from_a_number_to_a_kernel():
    difficulty = {e.id: e.difficulty for e in EXERCISES.values()}
    assert difficulty["01.2"] == min(difficulty.values()) and difficulty["07.2"] == max(difficulty.values())
