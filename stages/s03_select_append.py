"""Stage 03, select-based append: pick the new token out of the batch once a layer, not once a sequence.

What was slow:  to store one token, stage 02 cuts [1, H_kv, 1, D] out of the batch with a slice for every dimension
                and then indexes it twice more: 6 selects for each (layer, sequence), and up to 16 slices.
The change:     one `select` of the new position a layer gives [B, H_kv, D] for all sequences; a row of it is a token.
What it gives:  2 selects a layer and 4 for each (layer, sequence): 24 + 384 instead of 576 at 12 layers and a batch
                of 8. These are views: no byte is moved, the gain is host time alone.
Where it loses: the copies are the same, 2 for each (layer, sequence). Where the device is already the bottleneck,
                nothing is gained. A batch of 1 makes as many selects.

Post: "Performance", the step that removes the slices.
"""

from __future__ import annotations

from roseinfer.sequence import Sequence

from .s02_prealloc_gather import DenseStep, PreallocGather


class SelectAppend(PreallocGather):
    """PreallocGather with the new position selected once a layer."""

    name = "s03_select_append"

    def append(self, seqs: list[Sequence], step: DenseStep) -> None:
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            new = k_batch.size(2) - 1
            k_step, v_step = k_batch.select(2, new), v_batch.select(2, new)  # [B, H_kv, D]
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k_step[i], v_step[i])
