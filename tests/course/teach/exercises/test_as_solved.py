"""What an exercise expects, by its solution: the mistakes are the solution with other texts."""

from __future__ import annotations

import pytest

from course.teach.exercises.as_solved import as_solved, as_solved_by_name
from course.teach.exercises.solutions import solution, solutions_of

ONE_TOO_FEW = {"for i in preempted": "for i in preempted[1:]"}


def test_a_mistake_has_other_texts_than_the_solution():
    assert solution("14.2")([5, 5, 5], 4, 2) == ([2, 1], 8)
    assert solution("14.2", ONE_TOO_FEW)([5, 5, 5], 4, 2) == ([2, 1], 4)


def test_a_text_that_the_solution_does_not_have_is_refused():
    with pytest.raises(ValueError, match="the solution of 14.2 does not have 'youngest'"):
        solution("14.2", {"youngest": "oldest"})


def test_a_course_without_solutions_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("course.teach.exercises.solutions.ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^notebooks/solutions/99_\*.py is missing, and the checks compare"):
        solutions_of("99")


def test_one_value():
    expected = as_solved("14.1", {"all": {"min(n, room)": "n"}, "none": lambda cached, lengths, budget: []})
    case = [0, 0], [5, 5], 6
    assert expected.right(*case) == [5, 1]
    assert {why: mistaken(*case) for why, mistaken in expected.mistakes.items()} == {"all": [5, 5], "none": []}


def test_what_a_call_makes_of_it():
    expected = as_solved("14.1", {"all": {"min(n, room)": "n"}}, call=lambda answer, *case: sum(answer(*case)))
    assert (expected.right([0], [5], 3), expected.mistakes["all"]([0], [5], 3)) == (3, 5)


def test_values_by_name():
    expected = as_solved_by_name("14.2", {"preempted": {}, "lost": {"one is missing": ONE_TOO_FEW}})
    case = [5, 5, 5], 4, 2
    assert {name: part.right(*case) for name, part in expected.items()} == {"preempted": [2, 1], "lost": 8}
    assert expected["lost"].mistakes["one is missing"](*case) == 4
