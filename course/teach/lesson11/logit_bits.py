"""say_logit_bits: whether a sequence's logits are the same bit by bit alone and in a batch, on this machine."""

from __future__ import annotations

from roseinfer.models import Model
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch
from ..views.said import Said, say


def say_logit_bits(stage_class: type[Stage], model: Model, sizes: tuple[int, ...] = (2, 16, 64)) -> Said:
    """Decode one sequence alone, and as the first of batches of these sizes; say whether its logits are the same."""
    stage, seqs = ready_batch(stage_class, model, [8], max_num_seqs=max(sizes))
    alone = stage.decode(seqs)[0]
    sentences = []
    for size in sizes:
        stage, seqs = ready_batch(stage_class, model, [8] * size, max_num_seqs=max(sizes))
        difference = float((stage.decode(seqs)[0] - alone).abs().max())
        told = f"differ by up to {difference:.1e}" if difference else "are the same, bit by bit"
        sentences.append(f"Alone and among {size} sequences, one sequence's logits {told}.")
    return say("the logits of one sequence alone and in batches", *sentences)
