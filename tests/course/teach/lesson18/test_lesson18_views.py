"""What lesson 18 shows: operations and their times, the picture that melts, products, barriers, and a swapped loop."""

from __future__ import annotations

import numpy as np
import pytest
from numba import prange

from course import teach
from course.teach.exercises.attempt import does_nothing
from roseinfer.generate import generate
from roseinfer.models import load_model
from roseinfer.sequence import SamplingParams
from stages import NaiveCat, OneKernel, Policies
from stages import s18_one_kernel as stage_18

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def times(model):
    return [teach.time_operations(stage_class, model, batch_size=2) for stage_class in (Policies, OneKernel)]


def test_operations_are_timed_one_after_another(times, model):
    before, after = times
    assert [each.name for each in after.operations] == ["run_kernel"]
    layers = model.config.num_layers
    kinds = before.table.df.set_index("kind")["operations"]
    assert kinds.to_dict() == {
        "matrix product": 4 * layers + 1, "attention": layers, "other": 7 * layers + 7, "all": 12 * layers + 8,
    }  # fmt: skip
    for one, two in zip(before.operations, before.operations[1:], strict=False):
        assert 0 <= one.begin <= one.end <= two.begin
    assert before.replay_us == before.operations[-1].end > 0
    assert "µs" not in repr(before) and "To read all weights" in before.to_html()


def test_a_stage_without_graphs_is_refused(model):
    with pytest.raises(ValueError, match="must capture one graph for a batch, got s01_naive_cat"):
        teach.time_operations(NaiveCat, model)


def test_the_picture_has_a_box_for_each_operation_and_one_for_the_function(times):
    picture = teach.draw_melting(*times)
    assert repr(picture).splitlines() == [
        "one decode step, 2 sequences", f"s17_policies: {len(times[0].operations)} operations",
        "s18_one_kernel: 1 operation",
    ]  # fmt: skip
    cells = picture.frames[0].panels[0].cells
    assert len(cells) == sum(1 + len(each.operations) for each in times)
    assert picture.frames[-1] == picture.frames[0] and len(picture.frames[1].panels[0].cells) < len(cells)


def test_only_steps_of_one_batch_size_melt_and_only_into_one(times, model):
    with pytest.raises(ValueError, match="after must be a step of one operation, got 56"):
        teach.draw_melting(times[1], times[0])
    with pytest.raises(ValueError, match="must have one batch size, got 1 and 2"):
        teach.draw_melting(teach.time_operations(Policies, model), times[1])


def test_products_are_timed_and_a_stub_is_left_out():
    def product(out, x, weight, bias): ...

    def own(out, x, weight, bias):
        for m in prange(len(weight)):
            out[m] = (weight[m] * x).sum() + bias[m]

    small = load_model("tiny", device="cpu")
    names = [list(teach.time_products(small, stage_18.product, each).df["product"]) for each in (product, own)]
    assert names[1] == [*names[0], "yours"] and "plain loops (stage 18)" in names[0]


@pytest.mark.nightly
def test_a_loop_in_the_place_of_the_stages_computes_the_step(model):
    calls = np.zeros(1, np.int64)  # a constant for the compiler, so nothing is counted there

    def product(out, x, weight, bias):
        for m in prange(len(weight)):
            for n in range(len(x)):
                total = np.float32(0)
                for k in range(x.shape[1]):
                    total += weight[m, k] * x[n, k]
                out[n, m] = total + bias[m]

    def nothing_right(out, x, weight, bias):
        for m in prange(len(weight)):
            out[:, m] = calls[0]

    params = SamplingParams(max_tokens=4, ignore_eos=True)
    wanted, same, other = (
        [seq.output_ids for seq in generate(stage_class(model, num_blocks=8), [[3, 4], [5]], params)]
        for stage_class in (
            OneKernel, teach.with_loops(OneKernel, "same", product=product),
            teach.with_loops(OneKernel, "other", product=nothing_right),
        )
    )  # fmt: skip
    assert same == wanted != other


def test_a_stub_changes_nothing_and_unknown_loops_are_refused():
    def my_product(out, x, weight, bias): ...

    unchanged = teach.with_loops(OneKernel, "MyKernel", product=my_product)
    assert unchanged.kernel is OneKernel.kernel and unchanged.name == "MyKernel"
    assert does_nothing(my_product) and not does_nothing(stage_18.product)
    with pytest.raises(ValueError, match="loops must be of .*product.*, got 'products'"):
        teach.with_loops(OneKernel, "MyKernel", products=my_product)
    with pytest.raises(ValueError, match="stage_class must have a compiled step, `kernel`, got s17_policies"):
        teach.with_loops(Policies, "MyKernel", product=my_product)
