"""What lesson 23 counts and shows: launches of a step, its least time, and the kernels of a recorded one."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from oracles import small_model

from course import teach
from course.teach.lesson13.step_operations import operations_of
from course.teach.lesson23 import step_profile
from course.teach.lesson23.launch_counts import kind_of, launches_of
from course.teach.lesson23.step_profile import chart_of, recorded
from roseinfer.graphs.operation import operation
from stages import FewLaunches, Graphs


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_layer_has_half_as_many_launches():
    model = small_model()
    counted = teach.count_launches([Graphs, FewLaunches], model, [1, 3]).df
    layers = model.config.num_layers
    assert list(counted["all"]) == 2 * [10 * layers + 8, 5 * layers + 7]
    assert list(counted["products"]) == 4 * [4 * layers + 1] and list(counted["attention"]) == 4 * [layers]
    assert list(counted["norms"]) == 2 * [2 * layers + 1, 0] and list(counted["GELU"]) == 2 * [layers, 0]


def test_a_device_that_packs_no_matrices_starts_as_much():
    """A CPU's products are packed ones (stage 12), a GPU's are not; a meta tensor stands for a GPU's."""
    model, there = small_model(), small_model().to("meta")
    token_ids = torch.zeros(1, dtype=torch.int32, device="meta")

    @operation
    def attention(q):
        return torch.empty_like(q)

    def step():
        logits = there.logits(there(token_ids, token_ids, lambda layer, q, k, v: attention(q)))
        largest, tokens = logits.max(dim=-1)
        return torch.where(largest.isfinite(), tokens, -1)

    with torch.inference_mode():
        started = [each.name for each in operations_of(step) if not each.is_view]
    on_cpu = launches_of(Graphs(model, num_blocks=1, max_num_seqs=1), 1)
    assert Counter(map(kind_of, started)) == Counter(map(kind_of, on_cpu))


def test_the_least_time_is_bound_by_launches_or_by_reading():
    times = teach.least_times(["random:gpt2"], [1, 64], lambda config: 10 * config.num_layers).df
    assert list(times["bound by"]) == ["launches", "reading"]
    assert list(times["launches"]) == [120, 120] and times["MB"][0] < times["MB"][1]


def kernels(*rows):
    return [{"name": name, "count": count, "seconds": seconds, "share": None} for name, count, seconds in rows]


def run(folder, name, device, launches, on_cpu=False):
    """A file as `roseinfer bench step` writes it, as far as it is read."""
    listed = kernels(("void at::native::add<c10::BFloat16>(float)", launches - 1, 4e-6), ("gemm", 1, 9e-6))
    if on_cpu:
        listed = kernels(("aten::add", 9, None))
    row = {"model": "random:gpt2", "batch_size": 8, "seconds": 2e-5, "bytes_seconds": 5e-6, "kernels": listed}
    place = folder / "runs" / name
    place.mkdir(parents=True, exist_ok=True)
    other = row | {"batch_size": 64}
    (place / "step.json").write_text(json.dumps({"device": device, "commit": "b28c777aaaa", "rows": [row, other]}))


def test_the_run_with_the_most_or_the_fewest_launches_is_shown(tmp_path):
    for name, launches in (("old", 168), ("new", 67)):
        run(tmp_path, name, f"card of {name}", launches)
    run(tmp_path, "cpu", "a CPU", 0, on_cpu=True)
    for which, device, launches in (("most", "card of old", 168), ("fewest", "card of new", 67)):
        shown = teach.recorded_step("random:gpt2", 8, which, tmp_path)
        assert len(shown.cards) == 1 and f"<b>{device}, commit b28c777</b>: {launches} launches, 20 µs a step" in str(
            shown.cards
        )
        assert device not in repr(shown), "another report changes no recorded output"


def test_the_fewest_launches_are_those_of_this_machines_gpu_where_it_was_recorded(tmp_path, monkeypatch):
    for name, launches in (("old", 168), ("new", 67), ("mine", 70)):
        run(tmp_path, name, f"card of {name}", launches)
    monkeypatch.setattr(step_profile, "this_gpu", lambda: "card of mine")
    for which, launches in (("most", 168), ("fewest", 70)):
        assert f"{launches} launches" in str(teach.recorded_step("random:gpt2", 8, which, tmp_path).cards)


def test_kernels_come_longest_first_with_the_time_of_one(tmp_path):
    run(tmp_path, "one", "a card", 5)
    [step] = recorded("random:gpt2", 8, tmp_path)
    assert [name for name, *_ in step.kernels] == ["gemm", "add<BFloat16>"]
    assert chart_of(step).text == "5 launches of a decode step: 1 x gemm 9 µs, 4 x add<BFloat16> 4 µs"


def test_without_a_recorded_run_it_says_so(tmp_path):
    shown = teach.recorded_step("random:gpt2", 1, folder=tmp_path)
    assert shown.cards == [] and "once there is a GPU report" in shown.to_html()


def test_another_file_is_refused(tmp_path):
    (tmp_path / "runs" / "odd").mkdir(parents=True)
    (tmp_path / "runs" / "odd" / "step.json").write_text('{"rows": [{}]}')
    with pytest.raises(ValueError, match="data/runs/odd/step.json is no result as `roseinfer bench step` writes it"):
        teach.recorded_step("random:gpt2", 1, folder=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_profiled():
    shown = teach.profile_step(Graphs, "random:gpt2")
    assert shown.cards == [] and "once there is a GPU" in shown.to_html()
