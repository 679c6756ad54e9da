"""A decode step counts alike on every device: its own ops, and the bytes that it copies and fills."""

from __future__ import annotations

import pytest

from roseinfer.generate import begin, decode_step
from roseinfer.models import load_model
from roseinfer.profiling import TRANSFERS, bytes_copied, stage_ops, trace_once
from roseinfer.sequence import SamplingParams
from stages import LADDER

pytestmark = pytest.mark.slow

ONE_KIND_OF_BUFFER = [cls for cls in LADDER if cls.name < "s07"]  # later ones have inputs apart on a GPU, or kernels
MOVES = ("copy_", "cat", "select", "index", "index_put_", "zeros", "linear")


def counts(stage_class, device, lengths):
    model = load_model("tiny", device=device)
    stage = stage_class(model, num_blocks=8 * len(lengths))
    seqs = begin(stage, [[1 + n % 7] * n for n in lengths], SamplingParams(max_tokens=4, ignore_eos=True))
    ops = stage_ops(trace_once(lambda: decode_step(stage, seqs)))
    return [{op: ops[f"aten::{op}"] for op in MOVES}, bytes_copied(lambda: decode_step(stage, seqs)), ops[TRANSFERS]]


@pytest.mark.parametrize("lengths", [[16] * 3, [20, 64, 3, 90]], ids=str)
@pytest.mark.parametrize("stage_class", ONE_KIND_OF_BUFFER, ids=lambda cls: cls.name)
def test_a_step_counts_as_on_a_cpu_and_only_a_gpu_has_transfers(stage_class, device, lengths):
    *found, transfers = counts(stage_class, device, lengths)
    assert (transfers > 0) == (device != "cpu")
    if device != "cpu":
        assert found == counts(stage_class, "cpu", lengths)[:2]
