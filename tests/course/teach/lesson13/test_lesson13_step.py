"""Lesson 13, steps and stages that are captured: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.generate import begin
from roseinfer.graphs import capture
from roseinfer.sequence import SamplingParams
from stages import Graphs, PackedWeights

pytestmark = pytest.mark.slow


# 13.3


step_with = partial(solution, "13.3", torch=torch)
MADE_ONCE, RETURNED = "banned_ids = torch", "return torch.where(token_ids == 0, 0, tokens)"
A_MASK = "tokens[token_ids == 0] = torch.zeros_like(tokens[token_ids == 0])\n        return tokens"
REMEMBERED = {
    MADE_ONCE: f"ended = torch.zeros_like(token_ids, dtype=torch.bool)\n    {MADE_ONCE}",
    RETURNED: "ended.logical_or_(token_ids == 0)\n        return torch.where(ended, 0, tokens)",
}


test_wrong_steps = wrong_answers(
    "13.3",
    {
        "a list each time": (
            step_with({"[:, banned_ids]": "[:, torch.tensor(banned)]"}),
            "the step makes a tensor of a Python list",
        ),
        "the table changed": (
            step_with({"allowed[:, banned_ids] =": "scores[:, banned_ids] = allowed[:, banned_ids] ="}),
            "scores was handed in, and you have changed it",
        ),
        "item": (
            step_with({"+= positions": "+= positions[0].item()"}),
            "the capture is refused: a step that is recorded must not wait",
        ),
        "a mask": (step_with({RETURNED: A_MASK}), "an index by a mask"),
        "counts positions on": (
            step_with({RETURNED: f"positions.add_(1)\n        {RETURNED}"}),
            "positions was handed in, and you have changed it",
        ),
        "an end remembered": (step_with(REMEMBERED), "got 0, expected"),
        "banned ids of all steps": (
            step_with({MADE_ONCE: f"global banned_ids\n    {MADE_ONCE}"}),
            "values differ, first at",
        ),
        "positions in 16 bits": (step_with({"+= positions": "+= positions.short()"}), "positions=[100"),
        "scores in bf16": (step_with({"= scores[": "= scores.bfloat16()["}), "values differ"),
        "the tokens themselves": (step_with({"return step": "return step()"}), "expected the step"),
    },
)


def with_a_table(scores, token_ids, positions, banned):
    """All that does not depend on the position is made before."""
    table = scores.clone()
    table[:, banned] = -torch.inf
    table[0, 1:] = -torch.inf
    at_the_end = torch.zeros(scores.shape[0])
    at_the_end[0] = 1
    return lambda: (table.index_select(0, token_ids) + at_the_end * positions[:, None]).max(dim=1).indices


def in_buffers_of_its_own(scores, token_ids, positions, banned):
    allowed, tokens = torch.empty(len(token_ids), len(scores)), torch.empty_like(token_ids)
    penalty = torch.zeros(len(scores))
    penalty[banned] = -torch.inf

    def step():
        torch.index_select(scores, 0, token_ids, out=allowed)
        allowed.add_(penalty)[:, 0].add_(positions)
        torch.argmax(allowed, dim=-1, out=tokens)
        return tokens.masked_fill_(token_ids == 0, 0)

    return step


test_right_steps = right_answers(
    "13.3", {"a table made before": with_a_table, "its own buffers": in_buffers_of_its_own}
)


# 13.4


def warm(at_start, **methods):
    """A stage that runs at_start(stage) after its __init__."""

    def __init__(self, model, **sizes):
        Graphs.__init__(self, model, **sizes)
        with torch.inference_mode():
            at_start(self)

    return type("WarmGraphs", (Graphs,), {"__init__": __init__, **methods})


def capture_all(stage, buckets=None):
    for bucket in buckets or stage.buckets:
        stage.write_padding(0, bucket)
        stage.graph_of(bucket)


def capture_the_largest_for_all(stage):
    stage.write_padding(0, stage.buckets[-1])
    graph = stage.graph_of(stage.buckets[-1])
    stage.graphs = dict.fromkeys(stage.buckets, graph)


def keep_a_request(stage):
    capture_all(stage)
    begin(stage, [[1]], SamplingParams(max_tokens=3))


kept, kept_by_size = {}, {}


def share(stage):
    """The graphs of the first stage for all."""
    if not kept:
        capture_all(stage)
        kept.update(stage.graphs)
    stage.graphs = {bucket: kept.get(bucket, kept[max(kept)]) for bucket in stage.buckets}


def share_by_size(stage):
    """The graphs of the first stage of each size."""
    capture_all(stage)
    stage.graphs = kept_by_size.setdefault((stage.config, stage.max_num_seqs), stage.graphs)


def capture_again(self, bucket):
    self.graphs.pop(bucket, None)
    return Graphs.graph_of(self, bucket)


class Eager:
    def __init__(self, replay):
        self.replay = replay


def capture_in_vain(stage):
    capture_all(stage)
    stage.graph_of = lambda bucket: Eager(stage.static_step(bucket))


def capture_at_the_first_replay(stage):
    """Graphs in name: each is captured when a batch first needs it."""

    def capture_and_replay(bucket):
        graph = stage.graphs[bucket] = capture(stage.static_step(bucket), stage.model.device)
        return graph.replay()

    stage.graphs = {bucket: Eager(partial(capture_and_replay, bucket)) for bucket in stage.buckets}


def move_the_dummy_block(stage):
    capture_all(stage)
    stage.dummy_block = 0


test_wrong_warm_graphs = wrong_answers(
    "13.4",
    {
        "one graph for all": (warm(capture_the_largest_for_all), "the graph for 1 computes 9 rows"),
        "requests kept": (warm(keep_a_request), "free what the captures took"),
        "captured again": (warm(capture_all, graph_of=capture_again), "graphs were captured again"),
        "not used": (warm(capture_in_vain), "0 of 6 steps replayed a graph"),
        "shared by all stages": (warm(share), "sequence 0: token"),
        "shared by stages of one size": (warm(share_by_size), "sequence 0: token"),
        "the stage before": (PackedWeights, "expected a subclass of Graphs, got PackedWeights"),
        "up to 16": (warm(lambda s: capture_all(s, [b for b in s.buckets if b <= 16])), "has no graph for [32, 40]"),
        "at the first replay": (
            warm(capture_at_the_first_replay),
            "self.graphs[1] is of type Eager, expected a graph made by capture",
        ),
        "a running block as the dummy": (warm(move_the_dummy_block), "sequence 0: token"),
    },
)


class ByHand(Graphs):
    """Without graph_of; on a GPU each would share the memory of the one before."""

    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.write_padding(0, max_num_seqs)
        graph = None
        with torch.inference_mode():
            for bucket in reversed(self.buckets):
                graph = self.graphs[bucket] = capture(self.static_step(bucket), model.device, memory=graph)


def capture_idle(stage):
    """With the inputs as they were made, zeros: each row writes to block 0, which no sequence holds yet."""
    for bucket in stage.buckets:
        stage.graph_of(bucket)


test_right_warm_graphs = right_answers(
    "13.4",
    {
        "by hand": ByHand,
        "with inputs of zeros": warm(capture_idle),
    },
)
