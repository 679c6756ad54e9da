"""Lesson 13: what a recorded step looks like, and where a filled-up batch writes."""

from __future__ import annotations

import pytest
import torch

from course import teach
from course.contract.small_models import small_model
from course.teach.lesson13.step_operations import decode_operations
from roseinfer.generate import begin, decode_step
from roseinfer.graphs import capture
from roseinfer.profiling.replay import replay_differences
from roseinfer.sequence import SamplingParams
from stages import Graphs, PackedWeights

WEIGHT, INPUT, POOL = torch.randn(4, 6), torch.zeros(3, 4), torch.zeros(3, 6)
NAMES = {"w": WEIGHT, "tokens": INPUT, "pool": POOL}
KINDS = {"w": "weight", "tokens": "input", "pool": "pool"}


@pytest.fixture(scope="module")
def graph():
    def step():
        product = INPUT @ WEIGHT
        top, at = (product + POOL).max(dim=-1)
        return torch.relu(top), at

    with torch.inference_mode():
        return capture(step, torch.device("cpu"), names=NAMES)


def test_code_is_shown_without_what_is_only_for_the_interpreter(graph):
    view = teach.show_graph(graph, KINDS.get, 50, 0)
    assert repr(view) == (
        f"recorded: {len(graph.operations)} operations; tensors from outside: 1 of kind input, 1 of kind pool, "
        "1 of kind weight"
    )
    assert view.lines[0].startswith("x1 = m") and view.lines[0].endswith("(tokens, w)")
    assert view.lines[-1] == "return (x6, x5)"
    assert not any(";" in line or "torch.ops" in line for line in view.lines)


def test_names_have_the_colour_of_their_kind_and_results_have_none(graph):
    html = teach.show_graph(graph, KINDS.get, 50, 0).to_html()
    assert html.count(">tokens</span>") == html.count(">w</span>") == html.count(">pool</span>") == 1
    assert ">x1</span>" not in html


def test_what_is_left_out_is_counted(graph):
    whole = teach.show_graph(graph, KINDS.get, 50, 0).lines
    lines = teach.show_graph(graph, KINDS.get, 1, 2).lines
    assert lines == (whole[0], f"...  # {len(whole) - 3} lines", *whole[-2:])


def running(num_seqs, **sizes):
    stage = Graphs(small_model(), num_blocks=8, block_size=4, **sizes)
    seqs = begin(stage, [[3 + i] * (2 + i) for i in range(num_seqs)], SamplingParams(max_tokens=4, ignore_eos=True))
    decode_step(stage, seqs)
    return stage, seqs


def test_the_picture_says_which_slots_are_written():
    stage, seqs = running(3)
    slots = [stage.tables.of(seq.seq_id, 0)[(n := seq.num_cached_tokens - 1) // 4] * 4 + n % 4 for seq in seqs]
    text = repr(teach.draw_padding(stage, seqs, 4))
    assert f"write the slots {slots}" in text and "padding rows write [32], in block 8" in text


def test_a_bucket_smaller_than_its_batch_is_refused():
    stage, seqs = running(3)
    with pytest.raises(ValueError, match="bucket must be at least the 3 sequences, got 2"):
        teach.draw_padding(stage, seqs, 2)


def test_operations_are_counted_with_their_views():
    model = small_model()
    shown = repr(teach.count_operations([PackedWeights], model, [2]))
    operations = decode_operations(PackedWeights, model, 2)
    row = shown.splitlines()[-1].split()
    assert row == ["s12_packed_weights", "2", str(len(operations)), str(sum(each.is_view for each in operations))]


def test_a_decode_step_is_recorded_with_its_addresses():
    stage, seqs = teach.ready_batch(Graphs, small_model(), [4, 5], steps=1)
    first, second = (teach.record_decode(stage, seqs, stage.static_step(2)) for _ in range(2))
    assert first.violations == [] and replay_differences(first, second) == []
    assert teach.record_decode(*teach.ready_batch(PackedWeights, small_model(), [4], steps=1)).ops


def test_a_stages_graph_is_shown_with_its_names():
    stage, _ = teach.ready_batch(Graphs, small_model(), [4, 5], steps=1)
    shown = teach.show_stage_graph(stage, 2, first=3, last=2)
    assert shown.num_outside["input"] == 6 and "k_cache_0" in shown.kinds


def test_steps_with_a_graph_and_without_one_are_timed_for_each_size():
    speeds = teach.compare_graphs(PackedWeights, Graphs, small_model(), (1, 9), steps=2)
    assert repr(speeds).splitlines()[2:] == [
        "        1  s12_packed_weights              1",
        "        1  s13_graphs                      1",
        "        9  s12_packed_weights              9",
        "        9  s13_graphs                     16",
    ]
    assert speeds.df["speed"].iloc[0] == 1 and "step ms" not in repr(speeds)
