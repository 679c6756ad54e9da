"""The plans of the GPU report."""

from __future__ import annotations

import pytest

from roseinfer.bench.gpu_report import FULL, QUICK, Plan
from roseinfer.bench.gpu_report.graph_checks import LONGEST_PROMPT
from roseinfer.kernels.flat_cases import CASES
from roseinfer.models import model_config
from stages.s13_graphs import buckets_up_to


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_a_plan_names_what_exists_and_fits(plan: Plan):
    assert plan.flat_cases and set(plan.flat_cases) <= CASES.keys()
    longest = plan.prompt_len + max(size.max_new_tokens for size in plan.ladder_sizes)
    models = {plan.trace_model, *plan.checked_models, *(shape.model for shape in plan.ladders)}
    assert all(longest <= model_config(model).max_model_len for model in models)
    assert plan.prompt_len + plan.launch_steps + 10 <= model_config(plan.trace_model).max_model_len
    assert plan.dtypes[0] == "float32"
    costs = [size.max_new_tokens * size.repeats for size in plan.ladder_sizes]
    assert costs == sorted(costs, reverse=True)
    for axis in ("head_dim", "group", "block_size"):
        everything = {getattr(shape, axis) for shape in FULL.kernel_shapes}
        assert {getattr(shape, axis) for shape in plan.kernel_shapes} == everything


@pytest.mark.parametrize(("one", "other"), [("head_dim", "group"), ("head_dim", "block_size"), ("group", "block_size")])
def test_the_grid_has_every_pair(one: str, other: str):
    pairs = {(getattr(shape, one), getattr(shape, other)) for shape in FULL.kernel_shapes}
    assert len(pairs) == len({a for a, _ in pairs}) * len({b for _, b in pairs})


def test_ladders_have_each_dtype_and_graph_checks_sizes_of_graphs_and_between():
    assert {shape.dtype for shape in FULL.ladders} == set(FULL.dtypes) == {"float32", "float16", "bfloat16"}
    sizes, most = buckets_up_to(FULL.graph_check_seqs), FULL.graph_check_seqs
    assert len(sizes) > 5 and set(sizes) < set(range(1, most + 1))
    for spec in FULL.graph_check_models:  # the longest prompt, and a token a step
        assert LONGEST_PROMPT + 2 * most + 1 <= model_config(spec).max_model_len
