"""Stage 11, tokens, not logits: a step chooses its tokens on the device, and prompts are prefilled together.

What was slow:  after each forward the host reads numbers back to choose tokens: twice for a greedy batch; with sampled
                rows a third time, and once more for each of them. Each time it waits until the device has caught up,
                and queues nothing meanwhile. And each prompt has a forward of its own.
The change:     the choice is part of the step. Greedy rows take an argmax; sampled rows use an exponential race,
                which needs no check on the host; sampling parameters are uploaded in one copy. All queued prompts form
                one flat batch, since attention knows which tokens belong to which sequence.
What it gives:  8 bytes a sequence come back, once a step. The weights are read once for all prompts, not once for each.
Where it loses: a greedy step on a CPU, where the host never waits for a device. One sampled row among greedy ones: then
                all rows run the race, and if one has top-k or top-p, all are sorted. And the first calls of a process,
                which a warm-up hides.

A row with NaN in its logits gives -1, which raises when the tokens are read. The same seed gives the same tokens as
roseinfer.sampling.sample. Post: "Scheduling and benchmark" has the fused argmax and the prefill of many prompts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.profiling import span
from roseinfer.sampling import exponential_race, finite_temperature, generator_of, is_filtered, keep_top
from roseinfer.sequence import SamplingParams, Sequence

from .s10_one_table import OneTable


class FusedStep(OneTable):
    """OneTable that chooses tokens within the step and prefills all prompts in one flat batch."""

    name = "s11_fused_step"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        # Rows: temperature, top_k, top_p.
        self.wishes_on_host = torch.zeros(3, max_num_seqs, pin_memory=model.device.type == "cuda")
        self.wishes_on_device = self.wishes_on_host.to(model.device)

    @torch.inference_mode()
    def first_tokens(self, seqs: list[Sequence]) -> list[int]:
        """All prompts in as few flat batches as the buffers allow."""
        tokens: list[int] = []
        with span("roseinfer.prefill"), self.claimed(seqs):
            for group in self.groups(seqs):
                lengths = [len(seq) for seq in group]
                token_ids, positions = self.write_inputs(group, lengths)
                attend = self.write_tables(group, lengths)
                with span("roseinfer.model.forward"):
                    hidden = self.model(token_ids, positions, attend)
                    starts = self.inputs_on_device["query_start"]
                    last_rows = starts[1 : len(group) + 1] - 1
                    logits = self.model.logits(hidden[last_rows])
                tokens += read(self.choose(logits, group))
        return tokens

    @torch.inference_mode()
    def next_tokens(self, seqs: list[Sequence]) -> list[int]:
        logits = self.decode(seqs)
        try:
            return read(self.choose(logits, seqs))
        except BaseException:
            for seq in seqs:  # the step may be repeated: K and V are written to the same slots
                seq.num_cached_tokens -= 1
            raise

    def groups(self, seqs: list[Sequence]) -> list[list[Sequence]]:
        """seqs in order, in groups whose prompts have at most max_num_tokens tokens together."""
        groups: list[list[Sequence]] = []
        room = 0
        for seq in seqs:
            if len(seq) > room:
                groups.append([])
                room = self.max_num_tokens
            groups[-1].append(seq)
            room -= len(seq)
        return groups

    def choose(self, logits: Tensor, seqs: list[Sequence]) -> Tensor:
        """logits [B, V] -> token ids [B] int64, on the device; -1 for a row with NaN or infinity."""
        largest, tokens = logits.max(dim=-1)  # the first of equal ones
        params = [seq.params for seq in seqs]
        if any(p.temperature > 0 for p in params):
            is_drawn, probs = self.probabilities((logits - largest[:, None]).float(), params)
            tokens = torch.where(is_drawn, exponential_race(probs, self.noise(probs, seqs)), tokens)
        return torch.where(largest.isfinite(), tokens, -1)

    def probabilities(self, logits: Tensor, params: list[SamplingParams]) -> tuple[Tensor, Tensor]:
        """Which rows are sampled [B], and the distributions [B, V]; the parameters are uploaded in one copy."""
        self.wishes_on_host[:, : len(params)] = torch.tensor([
            [finite_temperature(p) if p.temperature > 0 else 0.0 for p in params],
            [min(p.top_k, self.config.vocab_size) for p in params],
            [p.top_p for p in params],
        ])  # fmt: skip
        if self.wishes_on_device is not self.wishes_on_host:
            self.wishes_on_device.copy_(self.wishes_on_host, non_blocking=True)
        temperature, top_k, top_p = self.wishes_on_device[:, : len(params), None]
        is_drawn = temperature > 0
        probs = torch.softmax(logits / torch.where(is_drawn, temperature, 1.0), dim=-1)
        if any(is_filtered(p) for p in params):
            has_filter = (top_k > 0) | (top_p < 1)
            probs = torch.where(has_filter, keep_top(probs, top_k.long(), top_p), probs)
        return is_drawn[:, 0], probs

    def noise(self, probs: Tensor, seqs: list[Sequence]) -> Tensor:
        """Like probs, from the exponential distribution; rows with a seed use a generator of their own."""
        noise = torch.empty_like(probs).exponential_()
        for row, seq in zip(noise, seqs, strict=True):
            if generator := generator_of(seq, probs.device):
                row.exponential_(generator=generator)
        return noise


def read(tokens: Tensor) -> list[int]:
    """Token ids on the host: the one time that a step waits for the device. Raises ValueError for a token of -1."""
    read = tokens.tolist()
    if -1 in read:
        raise ValueError(f"logits must be finite to sample from them, row {read.index(-1)} has NaN or infinity")
    return read
