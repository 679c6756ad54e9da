"""The solution of an exercise, as a checker asks for it."""

from __future__ import annotations

import inspect

import pytest
import torch

from course.teach.exercises.solutions import parse_solutions, solution
from roseinfer.sequence import Sequence


def test_a_function_a_class_and_a_value():
    assert solution("00.1")(3, 2) == (7, 4)
    assert solution("01.3", NaiveCat=object).__name__ == "NoZeros"
    assert solution("03.3") == [4, 4, 4, 4, 4, 4, 4, 5]


def test_it_has_the_names_that_its_notebook_has():
    assert solution("05.1", torch=torch)([[3]], 2).tolist() == [[3, 0]]
    assert solution("00.2", Sequence=Sequence).__globals__["Sequence"] is Sequence


def test_its_source_can_be_read():
    assert inspect.getsource(solution("00.3")).startswith("def kv_bytes(")


def test_a_section_is_there_once_and_not_empty():
    assert parse_solutions("") == {}
    with pytest.raises(ValueError, match="section 1 comes twice"):
        parse_solutions("# --- 1\nx\n# --- 1\ny\n")
    with pytest.raises(ValueError, match="section 1 is empty"):
        parse_solutions("# --- 1\n\n# --- 2\ny\n")
