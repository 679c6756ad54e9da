"""Answers compared on drawn cases: the smallest case that differs is told, with a reason that explains all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from course.teach.exercises.drawn import (
    FEWEST,
    Comparison,
    Expected,
    dict_of,
    draw,
    inputs,
    require_all,
    size,
    values_of,
)
from course.teach.exercises.explain import explain_value
from course.teach.exercises.wrong import Failed, Wrong

CASES = [(3, [4]), (1, []), *draw(lambda rng: (rng.randint(1, 9), [rng.randint(5, 90) for _ in range(2)]))]
SUM = Expected(
    lambda times, numbers: times * sum(numbers),
    {
        "the first number alone": lambda times, numbers: times * sum(numbers[:1]),
        "once": lambda times, numbers: sum(numbers),
    },
)


def describe(times, numbers):
    return f"{times} times {numbers}"


def told(answer, expected=SUM, **options):
    with pytest.raises(Wrong) as wrong:
        Comparison(CASES, expected, describe, **options)(answer)
    return str(wrong.value)


def test_the_same_cases_are_drawn_each_time():
    def drawn(seed):
        return draw(lambda rng: (rng.random(),), seed=seed)

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == FEWEST == 50


def test_every_case_is_tried_from_small_to_large_on_copies():
    seen = []

    def answer(times, numbers):
        seen.append(size((times, numbers)))
        total = times * sum(numbers)
        numbers.clear()
        return total

    for _ in range(2):
        assert "you have changed" in told(answer)
    assert len(seen) == 2 * len(CASES) and seen[:52] == sorted(seen[:52])


def _sorts(times, numbers):
    numbers.sort()
    return times * sum(numbers)


def test_an_answer_that_changes_its_inputs_is_told_when_all_that_it_returns_is_right():
    given = next(numbers for _, numbers in sorted(CASES, key=size) if numbers != sorted(numbers))
    message = told(_sorts)
    assert str(given) in message and message.endswith("which is the caller's: make a copy")
    assert "changed" not in told(lambda times, numbers: _sorts(times, numbers) + 1)
    assert told(_sorts, call=lambda answer, times, numbers: answer(times, numbers)) == message
    Comparison(CASES, SUM, describe)(lambda times, numbers: _sorts(times, [*numbers]))


def test_few_cases_are_no_comparison():
    with pytest.raises(AssertionError, match="2 cases, an exercise wants 50"):
        Comparison(CASES[:2], SUM, describe)(print)


def test_the_smallest_case_that_differs_is_told_with_the_mistake_that_explains_every_one():
    assert told(lambda times, numbers: sum(numbers)) == "3 times [4]: you return 4, expected 12: once"
    assert told(lambda times, numbers: times * sum(numbers[:1])).endswith(": the first number alone")
    both = told(lambda times, numbers: sum(numbers[:1]))
    assert both == "3 times [4]: you return 4, expected 12", "on this case it could be `once`, on others it is not"


def test_inputs_are_described_by_name():
    assert inputs("times", "numbers")(3, [4]) == "times=3, numbers=[4]"


def test_a_case_on_which_the_answer_fails_is_told_with_the_error():
    with pytest.raises(Failed, match=r"^1 times \[\]$") as failed:
        Comparison(CASES, SUM, describe)(lambda times, numbers: times * sum(numbers) * numbers[0] / numbers[0])
    assert isinstance(failed.value.error, IndexError)
    assert told(lambda times, numbers: times + (numbers or 1 / 0)[0]).startswith("1 times []")


def prints(times, numbers):
    print("given", times, numbers)
    return times * sum(numbers)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (prints, ""),
        (lambda *case: prints(*case) * 2, "given 3 [4]\n"),
        (lambda times, numbers: prints(times, numbers) + numbers[1], "given 1 []\n"),
    ],
    ids=["right", "wrong", "fails"],
)
def test_what_an_answer_prints_is_shown_for_the_case_that_is_told(answer, shown, capsys):
    try:
        Comparison(CASES, SUM, describe)(answer)
    except Wrong:
        pass
    assert capsys.readouterr().out == shown


def test_a_smaller_case_that_differs_goes_before_one_that_fails():
    assert told(lambda times, numbers: 1 if not numbers else numbers[9]) == "1 times []: you return 1, expected 0"


PARTS = {"sum": SUM, "count": Expected(lambda times, numbers: len(numbers))}


@pytest.mark.parametrize("unusual", [tuple, list, np.array, torch.tensor], ids=["tuple", "list", "array", "tensor"])
def test_so_many_values_come_in_any_sequence(unusual):
    call = values_of("sum", "count")
    Comparison(CASES, PARTS, describe, call=call)(lambda times, numbers: unusual([times * sum(numbers), len(numbers)]))
    message = told(lambda times, numbers: unusual([times * sum(numbers), 1]), PARTS, call=call)
    assert message == "1 times []: count: you return 1, expected 0"
    assert told(lambda *case: 7, PARTS, call=call) == "1 times []: expected (sum, count), got 7"


def test_one_of_several_values_that_is_none_is_not_a_missing_return():
    parts = {"first": Expected(lambda times, numbers: times), "second": Expected(lambda times, numbers: None)}
    message = told(lambda times, numbers: (None, None), parts)
    assert "first: you return None, expected 1" in message and "return` missing" not in message


def test_a_dict_is_compared_key_by_key():
    call = dict_of("sum", "count")
    Comparison(CASES, PARTS, describe, call=call)(lambda t, n: {"count": len(n), "sum": t * sum(n)})
    message = told(lambda t, n: {"count": len(n), "sum": sum(n)}, PARTS, call=call)
    assert message == "3 times [4]: sum: you return 4, expected 12: once"
    message = told(lambda t, n: {"sum": 1}, PARTS, call=call)
    assert message == "1 times []: expected a dict with the keys 'sum', 'count', got {'sum': 1}"


def test_a_judge_stops_at_the_smallest_case_that_it_refuses():
    tried = []

    def judge(times, numbers):
        tried.append(times)
        if len(numbers) == 2:
            raise Wrong("two numbers")

    with pytest.raises(Wrong, match=r"times \[\d+, \d+\]: two numbers"):
        require_all(CASES, judge, describe)
    assert len(tried) == 3
    with pytest.raises(Failed, match=r"1 times \[\]") as failed:
        require_all(CASES, lambda times, numbers: numbers[0], describe)
    assert isinstance(failed.value.error, IndexError)
    with pytest.raises(Wrong, match=r"times \[\d+, \d+\]: two numbers"):
        require_all(CASES, lambda times, numbers: "two numbers" if len(numbers) == 2 else None, describe)
    require_all(CASES, lambda *_: None, describe)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (-3, 3),
        (2.5, 2.5),
        (True, 1),
        ("text", 0),
        (None, 0),
        ([], 0),
        ([4, (1, 2)], 11),
        ({2: 3}, 8),
        (slice(None, 5), 7),
        (torch.ones(2, 3), 6),
    ],
)
def test_size(value, amount):
    assert size(value) == amount


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        (8, 8, None),
        (np.int64(8), 8, None),
        (torch.tensor([8]), 8, None),
        (8.0, 8, None),
        (2**60 + 1, 2**60, f"you return {2**60 + 1:,}, expected {2**60:,}"),
        (8.000001, 8, "you return 8.000001, expected 8"),
        (True, 1, "expected a number, got bool"),
        (float("nan"), 8, "you return nan, expected 8"),
        (None, 8, "got None: is a `return` missing?"),
        (np.ones(2), 8, "expected one number, got several"),
        ("8", 8, "expected a number, got str"),
        (0.1 + 0.2, 0.3, None),
        (((1, 2), []), [[1, 2], []], None),
        (np.array([[1, 2]]), [[1, 2]], None),
        ([torch.tensor(1)], [1], None),
        ([1], [2], "you return [1], expected [2]"),
        (None, [2], "got None: is a `return` missing?"),
        (list(range(300)), [], f"you return {str(list(range(300)))[:200]}..., expected []"),
    ],
)
def test_explain_value(got, want, says):
    assert explain_value(got, want) == says
