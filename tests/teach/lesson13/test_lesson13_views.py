"""Lesson 13: what a recorded step looks like, and where a filled-up batch writes."""

from __future__ import annotations

import pytest
import torch

from roseinfer import teach
from roseinfer.contract.small_models import small_model
from roseinfer.generate import begin, decode_step
from roseinfer.graphs import capture
from roseinfer.sequence import SamplingParams
from stages import Graphs

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


@pytest.mark.parametrize(
    ("kind_of", "first", "message"),
    [(KINDS.get, -1, "first and last"), (str.upper, 1, "must give input, pool, weight")],
)
def test_what_cannot_be_shown_is_refused(graph, kind_of, first, message):
    with pytest.raises(ValueError, match=message):
        teach.show_graph(graph, kind_of, first, 0)


def running(num_seqs, **sizes):
    stage = Graphs(small_model(), num_blocks=8, block_size=4, **sizes)
    seqs = begin(stage, [[3 + i] * (2 + i) for i in range(num_seqs)], SamplingParams(max_tokens=4, ignore_eos=True))
    decode_step(stage, seqs)
    return stage, seqs


def test_the_picture_says_which_slots_are_written():
    stage, seqs = running(3)
    slots = [stage.tables.of(seq.seq_id, 0)[(n := seq.num_cached_tokens - 1) // 4] * 4 + n % 4 for seq in seqs]
    text = repr(teach.draw_padding(stage, seqs, 4))
    assert f"write the slots {slots}" in text and "fill up write [32], in block 8" in text


def test_a_bucket_smaller_than_its_batch_is_refused():
    stage, seqs = running(3)
    with pytest.raises(ValueError, match="bucket must be at least the 3 sequences, got 2"):
        teach.draw_padding(stage, seqs, 2)
