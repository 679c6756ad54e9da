"""What stages 04 to 09 promise beyond the contract: exact calls and rebuilds, sound tables, pools that stay clean."""

from __future__ import annotations

import pytest
import torch
from checked_stages import ready
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import prompts_of

from roseinfer.blocks import BlockTables, OutOfBlocks
from roseinfer.generate import begin, decode_step, generate
from roseinfer.profiling import count_ops, stage_ops, trace_once
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from stages import BlockTable, BlockTableCache, NumbaPaged, TritonPaged, VectorizedGather

pytestmark = pytest.mark.slow


PAGED = [BlockTable, BlockTableCache, TritonPaged, NumbaPaged]
GATHER = "roseinfer.decode_step_sessions.build_batched_past"
TABLES = "roseinfer.decode_step_sessions.build_block_tables"
TO_DEVICE = "roseinfer.decode_step_sessions.h2d_block_tables"
APPEND = "roseinfer.kv.append_token"
by_name = pytest.mark.parametrize("stage_class", PAGED, ids=lambda cls: cls.name)


@pytest.mark.parametrize("lengths", [[5], [5] * 8, [1, 70, 3, 64]], ids=str)
def test_vectorised_gather_and_append_do_not_depend_on_the_batch(small, lengths):
    layers = small.config.num_layers
    stage, seqs = ready(VectorizedGather, small, lengths)
    gather = count_ops(lambda: decode_step(stage, seqs), span=GATHER)
    assert (gather["aten::index"], gather["aten::copy_"], gather["aten::cat"]) == (2 * layers, 0, 0)
    assert gather["aten::zeros"] == gather["aten::zero_"] == 0
    append = count_ops(lambda: decode_step(stage, seqs), span=APPEND)
    assert (append["aten::index_put_"], append["aten::copy_"], append["aten::index"]) == (2 * layers, 0, 0)


@by_name
def test_nothing_is_gathered_and_nothing_is_masked(small, stage_class):
    stage, seqs = ready(stage_class, small, [1, 70, 3, 64])
    ops = stage_ops(trace_once(lambda: decode_step(stage, seqs)))
    assert ops["aten::scaled_dot_product_attention"] == 0
    assert ops["aten::index_put_"] == 2 * small.config.num_layers
    with pytest.raises(ValueError, match="no span 'roseinfer.decode_step_sessions.build_batched_past'"):
        count_ops(lambda: decode_step(stage, seqs), span=GATHER)


@by_name
def test_all_tables_go_to_the_device_in_one_copy(small, stage_class):
    stage, seqs = ready(stage_class, small, [5] * 3)
    assert count_ops(lambda: decode_step(stage, seqs), span=TO_DEVICE)["aten::copy_"] == 1


@pytest.mark.parametrize("stage_class", [TritonPaged, NumbaPaged], ids=lambda cls: cls.name)
def test_what_is_compiled_is_called_once_a_layer(small, monkeypatch, stage_class):
    launches = []
    stage, seqs = ready(stage_class, small, [1, 70, 3, 64])
    attention = stage_class.attention
    monkeypatch.setattr(stage, "attention", lambda *args: (launches.append(args[0].shape), attention(*args))[1])
    ops = stage_ops(trace_once(lambda: decode_step(stage, seqs)))
    assert len(launches) == small.config.num_layers and set(launches) == {torch.Size([4, 4, 8])}
    assert ops["aten::index"] == 0, "the torch reference is no longer part of a step"


@by_name
def test_a_table_is_the_block_lists_with_zeros_behind(small, stage_class):
    stage, seqs = ready(stage_class, small, [9, 1, 30], block_size=4)
    stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
    step = stage.build(seqs)
    host = stage.tables_of(stage.host_buffer, seqs)
    assert host.shape == (small.config.num_layers, 3, min(192 // 4, 24)) and host.is_contiguous()
    for layer, table in enumerate(host.tolist()):
        for seq, row in zip(seqs, table, strict=True):
            blocks = stage.tables.of(seq.seq_id, layer)
            assert row == blocks + [0] * (len(row) - len(blocks))
    assert step.block_tables.size(2) == stage.tables.blocks_for(31)  # only the columns in use go to attention
    assert torch.equal(step.block_tables, host[:, :, : step.block_tables.size(2)])
    assert step.context_lens.tolist() == [9, 1, 30]


@by_name
def test_more_blocks_than_a_row_has_are_refused_and_not_cut(small, stage_class):
    stage = stage_class(small, num_blocks=8)
    assert stage.max_blocks == 3
    with pytest.raises(ValueError, match="blocks must be at most max_blocks=3, got 4"):
        stage.padded_row([0, 1, 2, 3])


@by_name
def test_what_no_token_wrote_is_never_read(small, stage_class):
    """A pool full of NaN gives the same tokens: stale slots of freed blocks, tails and free blocks play no part."""
    prompts = prompts_of([3, 17, 1, 8], small.config.vocab_size)
    stage = stage_class(small, num_blocks=24, block_size=8)
    stage.k_cache.fill_(float("nan"))
    stage.v_cache.fill_(float("nan"))
    seqs = generate(stage, prompts, SamplingParams(max_tokens=10, ignore_eos=True))
    assert [seq.output_ids for seq in seqs] == reference_generate(small, prompts, 10)


@by_name
def test_a_step_writes_one_slot_of_each_sequences_own_block(small, stage_class):
    stage, seqs = ready(stage_class, small, [9, 4, 7], block_size=4)
    before = stage.k_cache.clone()
    decode_step(stage, seqs)
    changed = (stage.k_cache != before).flatten(3).any(-1).nonzero().tolist()  # layer, block, slot
    at = [seq.num_cached_tokens - 1 for seq in seqs]
    expected = [
        [layer, stage.tables.of(seq.seq_id, layer)[n // 4], n % 4]
        for layer in range(small.config.num_layers)
        for seq, n in zip(seqs, at, strict=True)
    ]
    assert sorted(changed) == sorted(expected)


def rebuilt(stage, seqs, steps: int) -> list[int]:
    counts = []
    for _ in range(steps):
        before = stage.rows_built
        decode_step(stage, seqs)
        counts.append(stage.rows_built - before)
    return counts


def test_rows_are_built_at_a_blocks_edge_and_never_between(small):
    layers = small.config.num_layers
    stage, seqs = ready(BlockTableCache, small, [5] * 4, block_size=8)
    # The first step makes every row; tokens 5, 6, 7 fill the first block, 8 begins the next one.
    assert rebuilt(stage, seqs, 20) == [4 * layers, 0, 0, 4 * layers] + ([0] * 7 + [4 * layers]) * 2
    stage, seqs = ready(BlockTableCache, small, [5, 6, 7, 8], block_size=8)
    assert rebuilt(stage, seqs, 9) == [4 * layers, *[layers] * 3, 0, 0, 0, 0, layers]


def test_cached_rows_are_stacked_once_for_all_layers(small):
    stage, seqs = ready(BlockTableCache, small, [5] * 4)
    decode_step(stage, seqs)
    ops = count_ops(lambda: decode_step(stage, seqs), span=TABLES)
    assert (ops["aten::stack"], ops["aten::copy_"]) == (1, 0)


def test_rows_of_a_freed_sequence_are_forgotten(small):
    stage, seqs = ready(BlockTableCache, small, [5] * 3)
    decode_step(stage, seqs)
    stage.free(seqs[1])
    assert set(stage.cached_rows) == {seqs[0].seq_id, seqs[2].seq_id}


def test_the_posts_signature_takes_a_changed_list_for_the_old_one_and_the_version_does_not(small):
    """The same sequence freed and prefilled again, with other blocks between the same first count and last id."""
    stage, few = BlockTableCache(small, num_blocks=3, block_size=4), SamplingParams(max_tokens=3)
    [a] = begin(stage, prompts_of([9], 97), few)
    decode_step(stage, [a])
    old = list(stage.tables.of(a.seq_id, 0))
    version, rows = stage.tables.version(a.seq_id), stage.rows_of(a)
    stage.free(a)
    [b, c] = begin(stage, prompts_of([1, 1], 97), few)  # take the first two blocks
    stage.free(b)
    stage.free(c)
    a.append(int(stage.prefill(a).argmax()))
    new = stage.tables.of(a.seq_id, 0)
    assert (len(new), new[-1]) == (len(old), old[-1]) and new != old, "the schedule no longer shows the collision"
    assert stage.tables.version(a.seq_id) != version
    assert stage.rows_of(a)[0, :3].tolist() == new != rows[0, :3].tolist()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("grow"), st.integers(0, 3), st.integers(1, 12)),
            st.tuples(st.just("trim"), st.integers(0, 3), st.integers(0, 12)),
            st.tuples(st.just("free"), st.integers(0, 3), st.just(0)),
        ),
        max_size=40,
    )
)
def test_a_version_stands_for_one_state_of_a_block_list(actions):
    tables = BlockTables(2, num_blocks=12, block_size=2)
    seen: dict[int, tuple[int, list[list[int]]]] = {}
    for action, seq_id, tokens in actions:
        try:
            if action == "grow":
                tables.reserve({seq_id: tokens})
            elif action == "trim" and seq_id in tables:
                tables.trim(seq_id, tokens)
            elif seq_id in tables:
                tables.free(seq_id)
        except OutOfBlocks:
            pass
        for held in (i for i in range(4) if i in tables):
            state = (held, [list(tables.of(held, table)) for table in range(2)])
            assert seen.setdefault(tables.version(held), state) == state
        tables.check()
