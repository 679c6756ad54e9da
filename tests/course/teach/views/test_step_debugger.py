"""teach.step_debugger: one decode step, phase by phase: tensors, strides, copied bytes, and the state it leaves."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tiers import at_night

from course import teach
from course.teach.views.step_record import record_step
from course.teach.views.tensor_facts import Memory
from roseinfer.generate import begin, decode_step
from roseinfer.profiling import bytes_copied, stage_ops, trace_once
from roseinfer.sequence import SamplingParams, Sequence
from stages import LADDER, BlockTableCache, Graphs, NaiveCat, PreallocGather

PROMPTS = [[3] * 5, [4] * 8, [5] * 2]  # with the new token, the second sequence crosses a block's edge
PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)
WITH_PHASES = [stage for stage in LADDER if not issubclass(stage, Graphs)]
DAILY = ("s01", "s06", "s10")  # a dense one, a paged one and one that writes first: the others have their phases
NIGHTLY = tuple(stage.name for stage in WITH_PHASES if not stage.name.startswith(DAILY))
EVERY_STAGE = pytest.mark.parametrize("stage_class", at_night(WITH_PHASES, NIGHTLY), ids=lambda stage: stage.name)


def batch(stage_class, model):
    stage = stage_class(model, num_blocks=8, block_size=8, max_num_seqs=4)
    return stage, begin(stage, PROMPTS, PARAMS)


def test_a_step_that_is_replayed_has_no_phases(small):
    stage, seqs = batch(Graphs, small)
    with pytest.raises(ValueError, match="stage=s13_graphs replays its step as a whole, which has no phases"):
        record_step(stage, seqs)
    assert [seq.num_cached_tokens for seq in seqs] == [len(seq) - 1 for seq in seqs], "the step is still to be made"


def tensors(record, phase: str) -> dict:
    [found] = [p for p in record.phases if p.name == phase]
    return {facts.name: facts for facts in found.tensors}


def test_the_text_of_a_dense_stage_has_its_tensors_and_its_bytes(small):
    view = teach.step_debugger(*batch(PreallocGather, small))
    words = [line.split() for line in repr(view).splitlines()]
    assert "k [3, 4, 8] (96, 8, 1) float32 in q's memory, strided".split() == words[11][3:]
    assert words[-1] == "the whole step 23040 12288 24 4 48 0 0".split()
    assert view._repr_mimebundle_()[0]["text/plain"] == repr(view)


@pytest.mark.slow
@EVERY_STAGE
def test_bytes_and_ops_are_those_of_the_same_step_elsewhere(small, stage_class):
    record = record_step(*batch(stage_class, small))
    stage, seqs = batch(stage_class, small)
    ops = stage_ops(trace_once(lambda: stage.decode(seqs)))
    assert sum((phase.ops for phase in record.phases), start=Counter()) == ops
    stage, seqs = batch(stage_class, small)
    moved = bytes_copied(lambda: stage.decode(seqs))
    assert (sum(p.copied for p in record.phases), sum(p.filled for p in record.phases)) == (moved.copied, moved.filled)


@pytest.mark.slow
@EVERY_STAGE
def test_the_step_has_been_made_once_and_generation_goes_on(small, stage_class):
    stage, seqs = batch(stage_class, small)
    twin_stage, twins = batch(stage_class, small)
    view = teach.step_debugger(stage, seqs)
    decode_step(twin_stage, twins)
    for _ in range(2):
        assert [s.token_ids for s in seqs] == [s.token_ids for s in twins]
        assert [s.num_cached_tokens for s in seqs] == [s.num_cached_tokens for s in twins] == [len(s) - 1 for s in seqs]
        decode_step(stage, seqs)
        decode_step(twin_stage, twins)
    assert len(view.frames) == 4 + small.config.num_layers
    assert not {"build", "append"} & set(vars(stage)) and not small._forward_hooks and not small._forward_pre_hooks
    if stage_class is BlockTableCache:
        assert stage.rows_built == twin_stage.rows_built


def test_a_paged_stage_reads_views_and_keeps_k_and_v(small):
    record = record_step(*batch(BlockTableCache, small))
    build = tensors(record, "build")
    assert build["block_tables"].memory == "in device_buffer's memory"
    assert build["block_tables"].shape == (2, 3, 2) and not build["block_tables"].contiguous
    assert build["context_lens"].dtype == "int32"
    attention = tensors(record, "attention, layer 1")
    assert (attention["new[layer][0]"].memory, attention["new[layer][1]"].memory) == ("= k", "= v")
    append = tensors(record, "append")
    assert append["new[0..1][0]"].memory == "= k" and append["k_cache"].shape == (2, 8, 8, 4, 8)


def test_layers_that_differ_are_all_in_the_exact_text(small):
    class TwiceInLayerOne(PreallocGather):
        def build(self, seqs):
            inner = super().build(seqs)

            def step(layer, q, k, v):
                return inner(layer, q.clone() if layer else q, k, v)

            step.presents = inner.presents
            return step

        def append(self, seqs, step):
            super().append(seqs, step)

    text = repr(teach.step_debugger(*batch(TwiceInLayerOne, small)))
    assert "attention, layer 0 " in text and "attention, layer 1 " in text and "each layer" not in text


def test_an_error_in_the_step_reaches_the_caller_and_nothing_stays_behind(small):
    class Broken(NaiveCat):
        def append(self, seqs, step):
            raise RuntimeError("no room")

    stage, seqs = batch(Broken, small)
    with pytest.raises(RuntimeError, match="no room"):
        teach.step_debugger(stage, seqs)
    assert [seq.num_cached_tokens for seq in seqs] == [5, 8, 2]
    assert not {"build", "append"} & set(vars(stage)) and not small._forward_hooks and not small._forward_pre_hooks


def test_bad_arguments_are_refused(small):
    stage, seqs = batch(NaiveCat, small)
    with pytest.raises(ValueError, match="stage must be a Stage object"):
        teach.step_debugger(NaiveCat, seqs)
    with pytest.raises(ValueError, match="at least one sequence"):
        teach.step_debugger(stage, [])
    with pytest.raises(ValueError, match="not held"):
        teach.step_debugger(stage, [Sequence([1, 2])])
    assert all(len(seq) == seq.num_cached_tokens + 1 for seq in seqs)


# Memory


def test_memory_tells_own_part_shared_and_the_same():
    memory, base = Memory(), torch.zeros(4, 6)
    part = torch.zeros(8)[2:4]
    [own], [row], [same], [cut] = (memory.facts(n, t) for n, t in zip("abcd", (base, base[1], base, part), strict=True))
    assert (own.memory, row.memory, same.memory, cut.memory) == ("own", "in a's memory", "= a", "part of 32 bytes")
    assert own.contiguous and memory.facts("t", base.t())[0].contiguous is False


def test_alike_elements_are_described_once_and_others_each():
    def names(value):
        return [facts.name for facts in Memory().facts("x", value)]

    assert names([(torch.zeros(2), torch.zeros(2)) for _ in range(3)]) == ["x[0..2][0..1]"]
    assert names([torch.zeros(2), torch.zeros(3)]) == ["x[0]", "x[1]"]
    assert names([torch.zeros(2)]) == ["x[0]"]
    assert names([1, "a", None]) == names({"a": torch.zeros(1)}) == names([]) == []
