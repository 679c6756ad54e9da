"""walk_launches: the launches of a step without a graph and with one are those of the stages."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from course import teach
from course.display.grid import VEGA
from course.display.shapes import WIDTH
from course.teach.lesson13.step_operations import decode_operations, graph_operations
from roseinfer.bench.contenders import StageContender
from roseinfer.generate import decode_step
from roseinfer.models import load_model
from roseinfer.profiling.replay import record_step
from stages import FusedStep, Graphs, PackedWeights

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def picture(model):
    return teach.walk_launches(PackedWeights, Graphs, model)


def table(picture, name):
    [found] = [table["values"] for table in picture.spec["data"] if table["name"] == name]
    return found


def test_the_operations_are_those_of_a_recorded_step(model):
    stage, seqs = StageContender(PackedWeights, model, [[1] * 8] * 4, 5).at_step(2)
    ops = record_step(partial(decode_step, stage, seqs), []).ops
    names = [name.split("::")[-1] for name, _ in ops if not name.startswith("profiler::")]
    assert names == [each.name for each in decode_operations(PackedWeights, model, 4)]


def test_a_graph_holds_what_computes_and_views_are_left_around_it(model):
    held, outside = graph_operations(Graphs, model, 4)
    assert len(held) == 12 * model.config.num_layers + 8
    assert all(each.is_view for each in outside)


def test_the_text_has_the_counts_of_both(picture):
    first, eager, graph = repr(picture).splitlines()
    assert first == "one decode step, 4 sequences"
    assert eager == "s12_packed_weights: the host starts 77 operations, 48 of them compute"
    assert graph == "s13_graphs: 1 launch of a graph with 56 operations, 11 views around it"


def test_ticks_merge_into_one_and_the_devices_bars_close_up(picture):
    boxes = table(picture, "boxes")
    host, device = ([box for box in boxes if (box["y"] > 80) == below] for below in (False, True))
    assert len(device) == 48 and sum(box["fades"] >= 0 for box in host) == 77
    places = {box["x1"] for box in host if box["fades"] == 1}
    assert len(places) == 1, "all that the graph holds is one launch"
    gaps = [after["x1"] - before["x1"] for before, after in zip(device, device[1:], strict=False)]
    assert max(gaps) == pytest.approx(min(gaps)), "no bar waits for the host"
    assert all(box[f"x{end}"] + box[f"w{end}"] <= WIDTH for box in boxes for end in (0, 1))


def test_a_switch_moves_it_and_no_kernel_is_needed(picture):
    run, merged = picture.spec["signals"]
    assert run["bind"]["input"] == "radio" and merged["on"][0]["events"]["type"] == "timer"
    bundle, _ = picture._repr_mimebundle_()
    assert set(bundle) == {"text/plain", VEGA, "image/png"}


def test_a_stage_without_graphs_is_refused(model):
    with pytest.raises(ValueError, match="graphs must be a stage that captures one graph .*, got s12_packed_weights"):
        teach.walk_launches(FusedStep, PackedWeights, model)
    with pytest.raises(ValueError, match="graphs must be a stage whose graph computes what s11_fused_step does"):
        teach.walk_launches(FusedStep, Graphs, model)
    with pytest.raises(ValueError, match="model must be on the CPU, .* got cuda"):
        teach.walk_launches(PackedWeights, Graphs, SimpleNamespace(device=torch.device("cuda")))
