"""Lesson 15: the tree of blocks says what the books say, and the charts say what was found."""

from __future__ import annotations

import pytest

from course import teach
from course.contract.small_models import small_model
from roseinfer.arrivals import Arrival
from roseinfer.models import load_tokenizer
from stages import PrefixCache, TokenBudget

TEXT = [(5 * i + 3) % 97 for i in range(30)]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def tree_of(model, prompts, num_blocks=12, **sizes):
    """prompts: (step, token ids, tokens of output)."""
    work = [(Arrival(step, len(ids), n), ids) for step, ids, n in prompts]
    return teach.record_tree(PrefixCache(model, num_blocks=num_blocks, block_size=4, **sizes), work)


@pytest.fixture(scope="module")
def tree(model):
    """A text, another that goes on as the first two blocks do, and strangers that evict."""
    return tree_of(
        model,
        [(0, TEXT[:10], 5), (1, TEXT[:8] + [1, 2], 3), (6, [7] * 17, 2), (9, [8] * 20, 2)],
        num_blocks=8,
    )


def found(tree, step):
    return {len(node.text): node for node in tree.nodes[step] if node.is_found}


def test_a_block_is_found_from_the_end_of_its_step_on_and_held_by_all_who_share_it(tree):
    assert [(node.block, node.holders, node.num_tokens) for node in tree.nodes[0]] == [
        (0, (0,), 4),
        (1, (0,), 4),
        (2, (0,), 2),
    ]
    assert [node.is_found for node in tree.nodes[0]] == [True, True, False]
    assert found(tree, 1)[8].holders == (0, 1) and tree.num_free[1] == 4


def test_who_ends_leaves_blocks_in_line_from_the_end_of_the_text(tree):
    """First the last block of the second sequence, which ended before; it shares the others."""
    line = sorted((node.place_in_line, len(node.text), node.text[-4:]) for node in tree.nodes[4])
    ends = [tuple(request.seq.token_ids[8:12]) for request in tree.run.requests[1::-1]]
    assert line == [(1, 12, ends[0]), (2, 12, ends[1]), (3, 8, tuple(TEXT[4:8])), (4, 4, tuple(TEXT[:4]))]
    assert not any(node.holders for node in tree.nodes[4])


def test_what_is_evicted_is_told(tree):
    assert sum(len(tree.evicted(step)) for step in range(len(tree.nodes))) > 0
    for step in range(1, len(tree.nodes)):
        gone = {node.block for node in tree.nodes[step - 1] if node.is_found} - {
            node.block for node in tree.nodes[step] if node.is_found
        }
        assert gone <= set(tree.evicted(step))


def test_blocks_add_up_in_every_step(tree):
    for nodes, free in zip(tree.nodes, tree.num_free, strict=True):
        assert len({node.block for node in nodes}) == len(nodes) == 8 - free


def test_twins_are_two_nodes_of_one_text(model):
    tree = tree_of(model, [(0, TEXT[:9], 3), (0, TEXT[:9], 3)])
    both = [(node.twin, node.is_found, node.holders) for node in tree.nodes[0] if len(node.text) == 8]
    assert both == [(None, True, (0,)), (1, False, (1,))]


def test_a_frame_a_step_and_a_line_a_step(tree, tokenizer):
    view = teach.walk_prefix_tree(tree, tokenizer, "ABCD")
    lines = repr(view).splitlines()
    assert len(lines) == len(view.frames) == len(tree.nodes) == len(tree.run.steps)
    assert lines[0] == "step 0: computes A 10 · blocks: 3 held, 0 idle, 5 free"
    assert lines[1] == "step 1: computes A 1, B 2 · found B 8 · blocks: 4 held, 0 idle, 4 free"
    assert any("evicted block" in line for line in lines)
    assert any("×2: A,B" in text for text in view.texts(1)) and "evicted" in view.texts(len(view.frames) - 1)


def test_what_cannot_be_drawn_is_refused(model, tree, tokenizer):
    with pytest.raises(ValueError, match="names must be 4, one for each request, got 2"):
        teach.walk_prefix_tree(tree, tokenizer, "AB")
    with pytest.raises(ValueError, match="at most 6 blocks to be drawn, got one of 7"):
        teach.walk_prefix_tree(tree_of(model, [(0, TEXT[:28], 1)]), tokenizer, "A")
    with pytest.raises(ValueError, match="stage must keep blocks that are found by their keys"):
        teach.record_tree(TokenBudget(model, num_blocks=8), teach.work(model, [(0, 3, 2)]))


def test_the_stage_is_left_as_it_was(model):
    stage = PrefixCache(model, num_blocks=8, block_size=4)
    before = set(vars(stage))
    teach.record_tree(stage, teach.work(model, [(0, 3, 2)]))
    assert set(vars(stage)) == before


def test_hit_rates_are_those_of_the_stage(model):
    alike = teach.work(model, [Arrival(3 * i, 10, 2, prefix=(0, 8)) for i in range(3)])
    chart = teach.draw_hit_rates([PrefixCache], model, alike, [6, 12], block_size=4)
    assert repr(chart) == "s15_prefix_cache: 16 of 30 found with 6, 16 of 30 found with 12"
    with pytest.raises(ValueError, match="num_blocks must be at least one size"):
        teach.draw_hit_rates([PrefixCache], model, alike, [], block_size=4)


def test_first_tokens_are_told_exactly_where_time_is_counted_in_steps(model):
    requests = teach.work(model, [Arrival(0, 9, 2, prefix=(0, 9))] * 2)
    sizes = {"num_blocks": 12, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 9}
    stages = PrefixCache(model, **sizes), PrefixCache(model, **sizes)
    teach.record_run(stages[1], teach.work(model, [(0, 4, 4), (0, 4, 3)], seed=1))  # captures its graphs
    runs = [teach.record_run(*run, name="s15") for run in zip(stages, [requests] * 2, ("steps", "wall"), strict=True)]
    exact, live = (repr(teach.draw_first_tokens(run)) for run in runs)
    assert exact == f"{live}, half of them after 1, all after 2"
    assert live == "s15: first tokens of 2 requests"
    with pytest.raises(ValueError, match="by the same clock"):
        teach.draw_first_tokens(*runs)
