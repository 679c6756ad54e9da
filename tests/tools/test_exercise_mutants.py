"""Mutants of the solutions: how they are made, and that a few of each lesson's first one are refused. `make nightly`
tries all of all exercises: `python -m tools.mutants`."""

from __future__ import annotations

from functools import cache
from time import sleep

import pytest
from tiers import in_every_run

from tools.mutants.judge import LONGER, Bench, listed_as_right, mutants, sample, solutions
from tools.mutants.mutations import mutations
from tools.mutants.sql_mutations import sql_mutations

pytestmark = pytest.mark.slow


RIGHT = listed_as_right()
# A checker of a stage or a kernel takes seconds, and a crash of theirs would end the tests.
QUICK = [id for id, (_, source) in solutions().items() if "class " not in source and "jit" not in source]
ONE_OF_EACH_LESSON = {id.partition(".")[0]: id for id in reversed(QUICK)}.values()
OF_EACH, FEWEST = 4, 10

SOURCE = """
def busiest(lengths, most):
    total = 0
    for n in lengths:
        total += min(n, most)
        if total > 5 and not n:
            return lengths[1:n], total
    return total
"""


@pytest.fixture(scope="module")
def changes():
    return [change for change, _ in mutations(SOURCE)]


@pytest.mark.parametrize(
    "change",
    [
        "total = 0 -> total = 1",
        "total += min(n, most) -> total -= min(n, most)",
        "total += min(n, most) -> total = min(n, most)",
        "total += min(n, most) -> total += max(n, most)",
        "total += min(n, most) -> total += min(most, n)",
        "total += min(n, most) -> nothing",
        "if total > 5 and (not n): -> if total >= 5 and (not n):",
        "if total > 5 and (not n): -> if total > 6 and (not n):",
        "if total > 5 and (not n): -> if total > 5 or not n:",
        "if total > 5 and (not n): -> if total > 5 and n:",
        "if total > 5 and (not n): -> if total > 5:",
        "return (lengths[1:n], total) -> return (total, lengths[1:n])",
        "return (lengths[1:n], total) -> return (lengths[1:n + 1], total)",
        "return (lengths[1:n], total) -> return (lengths[1:], total)",
        "for n in lengths: -> for n in [*lengths][1:]:",
        "for n in lengths: -> for n in most:",
    ],
)
def test_mistakes_that_people_make_are_made(changes, change):
    assert change in changes


def test_a_value_set_in_each_round_is_set_once_in_front_of_the_loop():
    made = [source for _, source in mutations("def f(n):\n    for i in range(n):\n        acc = 0\n        acc += i")]
    assert any("acc = 0\n    for i" in source for source in made)


@pytest.mark.parametrize(
    "change",
    [
        "WHERE dur >= 5 AND tid = 1 -> WHERE dur > 5 AND tid = 1",
        "WHERE dur >= 5 AND tid = 1 -> WHERE dur >= 5 OR tid = 1",
        "WHERE dur >= 5 AND tid = 1 -> WHERE dur >= 5",
        "SELECT name, COUNT(*) AS n FROM slice -> SELECT name, SUM(dur) AS n FROM slice",
        "ORDER BY n DESC, name -> ORDER BY n, name",
        "ORDER BY n DESC, name -> ORDER BY name, n DESC",
    ],
)
def test_a_query_has_mistakes_in_its_text(change):
    query = "\nSELECT name, COUNT(*) AS n FROM slice\nWHERE dur >= 5 AND tid = 1\nORDER BY n DESC, name\n"
    assert change in [change for change, _ in mutations(f"answer = {query!r}")]


def test_a_text_that_is_no_query_has_none():
    assert list(sql_mutations("Select a row with dur = 5")) == []


def test_mutants_are_the_same_each_time_and_none_comes_twice():
    made = [source for _, source in mutations(SOURCE)]
    assert made == [source for _, source in mutations(SOURCE)]
    assert len(set(made)) == len(made) and SOURCE.strip() not in made


def test_what_compiles_to_the_same_code_is_no_mutant():
    assert all("(not" in source or "not n" not in source for _, source in mutations("def f(n): return -(n)"))


# 22.4's answer is the text of a file, in which nothing is changed.
OF_CODE = [id for id in solutions() if id != "22.4"]


# Those of which some are listed as right in every run, the others at night.
@pytest.mark.parametrize("exercise_id", in_every_run({id: (id,) for id in OF_CODE}, RIGHT))
def test_an_exercise_has_mutants_each_with_a_name_of_its_own(exercise_id):
    ids = {mutant.id for mutant in mutants(exercise_id)}
    assert len(ids) == len(mutants(exercise_id)) >= FEWEST
    assert RIGHT.get(exercise_id, {}).keys() <= ids, "listed as right, and no mutant any more"
    listed = {mutant.id: mutant.change for mutant in mutants(exercise_id) if mutant.id in RIGHT.get(exercise_id, {})}
    assert {id: entry["line"] for id, entry in RIGHT.get(exercise_id, {}).items()} == listed


@pytest.mark.parametrize("exercise_id", ONE_OF_EACH_LESSON)
def test_a_sample_of_mutants_is_refused(exercise_id):
    bench = Bench(exercise_id)
    bench.seconds = 30  # a busy machine compiles a kernel in 10
    tried = [mutant for mutant in sample(exercise_id, OF_EACH) if mutant.id not in RIGHT.get(exercise_id, {})]
    assert [mutant.change for mutant in tried if bench.judge(mutant.source)[0]] == []
    bench.require_solution("after its mutants")


def test_a_checker_that_remembers_an_answer_sets_no_shorter_limit(monkeypatch):
    bench = Bench("00.1")

    @cache
    def judge(source):
        sleep(0.2)
        return True, ""

    monkeypatch.setattr(bench, "judge", judge)
    bench.set_limit()
    assert bench.seconds >= 1 + LONGER * 0.2
