"""find_races: what tasks of one parallel loop share, and what only loops after one another do."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from course import teach
from course.teach.lesson18.watched import watch
from stages import s18_one_kernel as stage_18


def shifted(out, x):
    for i in prange(1, len(x)):
        x[i] = x[i - 1] + 1
    for i in prange(len(x)):
        out[i] = x[i]


def summed(out, x):
    total = np.zeros(1)
    for i in prange(len(x)):
        total[0] += x[i]
    out[0] = total[0]


def with_its_own_array(out, x):
    for i in prange(len(x)):
        own = np.zeros(2)
        own[0] += x[i]
        out[i] = own.sum()


def nested(out, x):
    for i in prange(2):
        for j in prange(2):  # Numba runs an inner loop in turn
            x[i] += j
        out[i] = x[i]


def test_an_element_that_one_task_writes_and_another_reads():
    found = teach.find_races(shifted, out=np.zeros(4), x=np.zeros(4))
    assert repr(found).splitlines() == [
        "2 parallel loops, a race in 2 elements",
        "x[1]: task 1 writes it, task 2 reads it",
        "x[2]: task 2 writes it, task 3 reads it",
    ]
    assert found and "x[1]" in found.to_html()


def test_an_array_that_all_tasks_share():
    found = teach.find_races(summed, out=np.zeros(1), x=np.ones(3))
    assert str(found.races[0]) == "its own array (1,): tasks 0, 1, 2 write it"


def test_arrays_of_a_task_are_its_own_and_inner_loops_are_no_tasks():
    for function in (with_its_own_array, nested):
        found = teach.find_races(function, out=np.zeros(2), x=np.ones(2))
        assert not found and repr(found) == "1 parallel loop, no race"


def test_the_callers_arrays_are_left_as_they_are():
    out, x = np.zeros(4), np.arange(4.0)
    teach.find_races(shifted, out=out, x=x)
    assert not out.any() and x.tolist() == [0, 1, 2, 3]


def test_a_compiled_function_is_judged_as_plain_python():
    assert teach.find_races(njit(parallel=True)(summed), out=np.zeros(1), x=np.ones(3))


def test_reads_are_counted_through_views_slices_and_expressions():
    def reads(function):
        x = np.arange(6.0).reshape(2, 3)
        return watch(function, {"x": x})[1].num_reads["x"]

    assert reads(lambda x: x[1, 2]) == 1
    assert reads(lambda x: x[1]) == 0
    assert reads(lambda x: x[1] * 2) == 3
    assert reads(lambda x: x.sum()) == 6
    assert reads(lambda x: [value for value in x[0]]) == 3  # noqa: C416
    assert reads(lambda x: np.dot(x[0], x[1])) == 6
    assert reads(lambda x: x.reshape(-1)[4]) == 1
    assert reads(lambda x: np.zeros_like(x)) == 0


def test_the_loops_of_the_stage_have_no_race():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 8)).astype(np.float32)
    weight, bias = rng.normal(size=(5, 8)).astype(np.float32), np.zeros(5, np.float32)
    arguments = {"out": np.zeros((3, 5), np.float32), "x": x, "weight": weight, "bias": bias}
    assert not teach.find_races(stage_18.product, **arguments)
    assert not teach.find_races(stage_18.gelu, x=x)
    heads = rng.normal(size=(2, 3 * 2, 4)).astype(np.float32)  # q, k and v of 2 heads
    pool = rng.normal(size=(2, 5, 2, 4, 4)).astype(np.float32)
    found = teach.find_races(
        stage_18.attend, out=np.zeros((2, 2, 4), np.float32), heads=heads, k_pool=pool[0], v_pool=pool[1],
        slot_mapping=np.array([1, 14]), context_lens=np.array([2, 7]), block_tables=np.array([[0, 0], [2, 3]]),
    )  # fmt: skip
    assert not found and found.num_loops == 1
