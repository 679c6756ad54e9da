"""walk_launches: the launches of a step without a graph and with one are those of the stages."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from course import teach
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


def test_the_device_waits_for_launches_and_not_within_a_graph(picture):
    by_one, graph = ([[cell for cell in panel.cells if cell.row == row] for row in (0, 1)]
                     for panel in picture.frames[0].panels)  # fmt: skip
    assert [len(cells) for cells in by_one] == [77, 48] and [len(cells) for cells in graph] == [12, 48]
    [launch] = [cell for cell in graph[0] if cell.width > 1]
    begins = [cell.column for cell in graph[1]]
    assert begins == [launch.column + launch.width + place for place in range(48)], "no box waits for the host"
    assert all(cell.tooltip in {other.tooltip for other in by_one[0]} for cell in by_one[1])


def test_a_stage_without_graphs_is_refused(model):
    with pytest.raises(ValueError, match="graphs must be a stage that captures one graph .*, got s12_packed_weights"):
        teach.walk_launches(FusedStep, PackedWeights, model)
    with pytest.raises(ValueError, match="graphs must be a stage whose graph computes what s11_fused_step does"):
        teach.walk_launches(FusedStep, Graphs, model)
    with pytest.raises(ValueError, match="model must be on the CPU, .* got cuda"):
        teach.walk_launches(PackedWeights, Graphs, SimpleNamespace(device=torch.device("cuda")))
