"""teach.check: what was not attempted, what is wrong and where, hints."""

from __future__ import annotations

import importlib

import pytest
import torch
from shown import in_cell, views

from course import teach
from course.teach.exercises.exercise import exercise
from course.teach.exercises.explain import explain_tensor
from course.teach.exercises.text import Text
from course.teach.exercises.wrong import Wrong
from stages import NaiveCat

STUB = '''
import torch

def swapped(x):
    """Your turn."""
    ...

class Swap(NaiveCat):
    """With a method to fill in."""

    def __init__(self, model, *, num_blocks):
        super().__init__(model, num_blocks=num_blocks)
        self.swapped = {}

    def append(self, seqs, step):
        ...

class Empty(NaiveCat):
    ...

class Alone:
    ...

def maker(x):
    count = 0

    def made():
        nonlocal count
        count += 1
        return x

    return made

answer = ...
'''


@pytest.fixture
def registry(monkeypatch):
    module = importlib.import_module("course.teach.exercises.exercise")
    monkeypatch.setattr(module, "_registered", {})
    monkeypatch.setattr(module, "_hints_shown", {})


@pytest.fixture
def swap(registry):
    @exercise(Text("99.1", "Swap", 3, 2, 4, STUB, "Turn [H, T] into [T, H].\n\nUse `x`.", ("a", "b <c>", "d")))
    def check_swap(answer):
        x = torch.arange(6.0).reshape(2, 3)
        if mistake := explain_tensor(answer(x), x.T):
            raise Wrong(mistake)


def test_check_names_the_mistake_or_passes(swap):
    assert repr(teach.check("99.1", lambda x: x.T)) == "99.1 PASS"
    assert repr(teach.check("99.1", lambda x: x)) == (
        "99.1 not yet: shape (2, 3), expected (3, 2): values right after permute(1, 0)"
    )
    assert teach.check("99.1", torch.t) and not teach.check("99.1", None)
    assert "Stuck? teach.hint" in views(teach.check("99.1", lambda x: 1))[1]


def handed_out(name, cell=STUB, **names):
    """What the cell defines by that name, run as a kernel runs it."""
    return in_cell(cell, NaiveCat=NaiveCat, **names)[name]


@pytest.mark.parametrize("name", ["swapped", "Swap", "Empty", "Alone", "maker", "answer"])
def test_what_was_handed_out_is_not_attempted(swap, name):
    assert repr(teach.check("99.1", handed_out(name))) == "99.1 not attempted"


@pytest.mark.parametrize("stub", ["pass", '"""Mine."""', "...  # later", "return", "return None"])
def test_a_stub_stays_one_whatever_is_noted_in_it(swap, stub):
    assert repr(teach.check("99.1", handed_out("swapped", f"def swapped(x):\n    {stub}"))) == "99.1 not attempted"


def test_a_stub_that_makes_a_function_stays_one_wherever_it_stands(swap):
    """Code objects differ by their first line, too, and by flags of the file that compiled them."""
    namespace = {"NaiveCat": NaiveCat}
    exec(compile("\n" + STUB, "a cell", "exec", dont_inherit=True), namespace)
    assert repr(teach.check("99.1", namespace["maker"])) == "99.1 not attempted"


def test_a_value_that_is_none_is_not_attempted(swap):
    assert repr(teach.check("99.1", None)) == "99.1 not attempted"


class Mine(NaiveCat):
    """A learner's own class, which does the work."""

    def gather_sequence(self, seq, layer):
        return super().gather_sequence(seq, layer)


ATTEMPTS = {
    "a class that inherits its work": ("Empty", "class Empty(Mine):\n    ..."),
    "that class under the other name": ("Empty", "Empty = Mine"),
    "its base under the course's name": ("Empty", "class NaiveCat(Mine): ...\nclass Empty(NaiveCat): ..."),
    "one more base": ("Empty", "class Empty(Mine, NaiveCat): ..."),
    "a plain attribute": ("Empty", "class Empty(NaiveCat):\n    block_size = 3"),
    "a name of its own": ("Empty", "class Empty(NaiveCat):\n    name = 'mine'"),
    "a function put in": ("Empty", "class Empty(NaiveCat): ...\nEmpty.append = print"),
    "a private attribute": ("Empty", "class Empty(NaiveCat):\n    _kept = {}"),
    "one method of several": ("Swap", STUB.replace("    def append(self, seqs, step):\n        ...", "")),
    "a method filled in": ("Swap", STUB.replace("seqs, step):\n        ...", "seqs, step):\n        self.swapped = 1")),
    "another function inside": ("maker", STUB.replace("count += 1", "count += 2")),
    "another start": ("Swap", STUB.replace("self.swapped = {}", "self.swapped = []")),
    "a function that returns nothing": ("swapped", "def swapped(x):\n    x.add(1)"),
    "a function that returns its argument": ("swapped", "def swapped(x):\n    return x"),
    "a guess": ("swapped", "def swapped(x):\n    return ..."),
    "a function of another name": ("transposed", "def transposed(x):\n    ..."),
    "an error of its own": ("swapped", "def swapped(x):\n    raise NotImplementedError"),
    "a number": ("answer", "answer = 0"),
    "an empty list": ("answer", "answer = []"),
    "the course's own class": ("NaiveCat", ""),
}


@pytest.mark.parametrize(("name", "cell"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_an_attempt_is_judged(swap, name, cell):
    assert repr(teach.check("99.1", handed_out(name, cell, Mine=Mine))).startswith("99.1 not yet: ")


def test_an_unfinished_kernel_is_not_attempted(swap):
    from roseinfer.kernels.triton_mode import InterpretedKernel

    kernel = InterpretedKernel.__new__(InterpretedKernel)
    kernel.kernel = type("JITFunction", (), {"fn": staticmethod(handed_out("swapped"))})()
    assert repr(teach.check("99.1", kernel)) == "99.1 not attempted"


def test_an_operation_that_torch_has_not_is_an_error_of_the_answer(swap):
    cell = 'def swapped(x):\n    return x.to("meta").to("cpu")\nv = check("99.1", swapped)'
    verdict = in_cell(cell, check=teach.check)["v"]
    assert repr(verdict).startswith("99.1 not yet: NotImplementedError: Cannot copy out of meta tensor")
    assert "in line 2 of your cell" in repr(verdict)


def test_an_error_of_the_learners_is_told_with_its_line(swap):
    cell = 'def helper(x):\n    return x / "2"\n\ndef answer(x):\n    return helper(x)\n\nv = check("99.1", answer)'
    verdict = in_cell(cell, check=teach.check)["v"]
    assert repr(verdict).startswith("99.1 not yet: TypeError: unsupported operand type(s)")
    assert repr(verdict).endswith('in line 2 of your cell: `return x / "2"`')
    verdict = in_cell('v = check("99.1", 5)', check=teach.check)["v"]
    assert repr(verdict) == "99.1 not yet: checking your answer raised TypeError: 'int' object is not callable"


def test_an_error_on_a_drawn_case_is_told_with_its_inputs_and_its_line():
    cell = 'def pairs(p, n):\n    return p // (n - 1), 0\n\nv = check("00.1", pairs)'
    assert repr(in_cell(cell, check=teach.check)["v"]) == (
        "00.1 not yet: prompt_len=1, new_tokens=1: ZeroDivisionError: integer division or modulo by zero, in line 2 of "
        "your cell: `return p // (n - 1), 0`"
    )


def test_hints_come_one_by_one(swap):
    assert [repr(teach.hint("99.1")) for _ in range(4)] == [
        "99.1 hint 1 of 3: a",
        "99.1 hint 2 of 3: b <c>",
        "99.1 hint 3 of 3: d",
        "99.1 hint 3 of 3: d",
    ]
    assert views(teach.hint("99.1", 1))[0] == "99.1 hint 1 of 3: a"
    assert "the last one" in views(teach.hint("99.1", 3))[1] and "the last one" not in views(teach.hint("99.1", 2))[1]
    with pytest.raises(ValueError, match="number must be 1 to 3 for 99.1, got 4"):
        teach.hint("99.1", 4)


def test_card_folds_its_hints(swap):
    plain, shown = views(teach.exercise("99.1"))
    assert plain == "exercise 99.1: Swap\n3 minutes, difficulty 2 of 5, importance 4 of 5"
    assert "difficulty 2 of 5, importance 4 of 5" in shown and "Use x." in shown and "b <c>" in shown
    assert teach.exercise("99.1").to_html().count("<details><summary>Hint") == 3


def test_unknown_exercises_and_bad_registrations_are_refused(swap):
    with pytest.raises(ValueError, match="exercise_id='98.1': lesson 98 has no exercises; lessons with exercises: "):
        teach.check("98.1", 1)
    with pytest.raises(ValueError, match="must look like \"01.1\", got '1.2'"):
        teach.hint("1.2")
    good = {"title": "t", "minutes": 1, "difficulty": 1, "importance": 1}
    good |= {"stub": "x = ...", "task": "t", "hints": ("a", "b", "c")}
    for bad in ({"hints": ("a", "b")}, {"hints": "abc"}, {"difficulty": 6}, {"importance": 0}, {"minutes": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
            Text("99.2", **{**good, **bad})


@pytest.mark.parametrize("error", [None, Wrong("no"), ValueError("no")], ids=["right", "wrong", "an error"])
def test_a_checker_runs_on_one_thread_and_torch_keeps_its_own_number(registry, error):
    seen = []

    @exercise(Text("99.2", "Count", 3, 1, 1, "n = None", "t", ("a", "b", "c")))
    def check_count(answer):
        seen.append(torch.get_num_threads())
        if error is not None:
            raise error

    torch.set_num_threads(2)
    teach.check("99.2", 5)
    assert (seen, torch.get_num_threads()) == ([1], 2)
