"""What an entry changes of the library is found: any function, class or constant, in any module."""

from __future__ import annotations

import sys

import pytest

from course.contest import entry
from course.contest.entry import make_engine
from course.contest.library import changed_since, marks_of_library
from course.contest.places import run_in_places
from roseinfer.engine import config, policies
from roseinfer.engine.engine import Engine
from roseinfer.models import load_model
from stages import LADDER


def other(*arguments, **settings):
    return None


def change_code(monkeypatch):
    monkeypatch.setattr(entry.engine_of, "__code__", other.__code__)


WAYS = {
    "a constant's contents": (
        lambda patch: patch.setitem(policies.POLICIES, "fcfs", policies.Packed),
        "roseinfer.engine.policies.POLICIES",
    ),
    "a function": (lambda patch: patch.setattr(entry, "engine_of", other), "course.contest.entry.engine_of"),
    "a function's code": (change_code, "course.contest.entry.engine_of"),
    "a function's defaults": (
        lambda patch: patch.setattr(config.check_dtype, "__defaults__", ("float16",)),
        "roseinfer.engine.config.check_dtype",
    ),
    "a method": (lambda patch: patch.setattr(Engine, "step", other), "roseinfer.engine.engine.Engine.step"),
    "a method that is gone": (lambda patch: patch.delattr(Engine, "rest"), "roseinfer.engine.engine.Engine.rest"),
    "a module": (lambda patch: patch.delitem(sys.modules, entry.__name__), "course.contest.entry."),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "name"), WAYS.values(), ids=list(WAYS))
def test_a_change_is_found_and_named(change, name, monkeypatch):
    before = marks_of_library()
    assert changed_since(before) is None
    change(monkeypatch)
    found = changed_since(before)
    monkeypatch.undo()
    assert found and name in found
    assert changed_since(before) is None


@pytest.mark.slow
def test_what_honest_entries_do_is_no_change():
    """Every stage of the course that one process runs, and the finished engine."""

    class All(entry.Settings):
        settings = {
            "scheduling_policy": "longest_output",
            "enable_prefix_caching": True,
            "enforce_eager": False,
            "speculative": {"method": "ngram", "num_tokens": 4},
        }

    model = load_model("tiny", device="cpu")
    stages = [one for one in LADDER if one.num_processes == 1 and one.why_untimed(model.device) is None]
    before = marks_of_library()
    for own in [*stages, All]:
        made = make_engine(own, model)
        for _ in run_in_places(made, [(4, 3)] * 9, lambda ended, begun: [[1, 2, 3, 4]] * len(begun)):
            pass
    assert changed_since(before) is None
