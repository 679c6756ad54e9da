"""Sampler: draws the tokens of rows that are not greedy inside the step, on the device, without waiting for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roseinfer.sampling import NO_TOKEN, distribution, exponential_race, finite_temperature, generator_of, is_filtered
from roseinfer.sequence import Sequence

from .batch import InputBuffers, Shapes


def sampler_shapes(max_num_rows: int) -> Shapes:
    """Return the shapes of the arrays in the sampler's InputBuffers."""
    return {
        "drawn": ((max_num_rows,), torch.int64),
        "temperature": ((max_num_rows,), torch.float32),
        "filtered": ((max_num_rows,), torch.int64),
        "top_k": ((max_num_rows,), torch.int64),
        "top_p": ((max_num_rows,), torch.float32),
    }


class Sampler:
    """Samples up to max_num_rows rows. Greedy rows keep the tokens that the step has chosen; others are drawn here.

    Rows with a seed get the tokens that roseinfer.sampling.sample gives them. num_hosts: as InputBuffers takes it.
    """

    def __init__(self, max_num_rows: int, vocab_size: int, device: torch.device, num_hosts: int = 1) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.inputs = InputBuffers(sampler_shapes(max_num_rows), device, num_hosts)

    def __call__(
        self, logits: Tensor, tokens: Tensor, seqs: list[Sequence], lengths: np.ndarray | None = None
    ) -> Tensor:
        """Return token ids [B], row i chosen by seqs[i].params, from logits [B, V] and greedy tokens [B] of `compute`.

        lengths [B]: of the sequences, for when a step in flight makes them longer than they are now, or drafts do.
        """
        drawn = [row for row, seq in enumerate(seqs) if seq.params.temperature > 0]
        if not drawn:
            return tokens
        rows, probs = self.probabilities(logits, seqs, drawn)
        num_tokens = [len(seqs[row]) for row in drawn] if lengths is None else lengths[drawn].tolist()
        winners = exponential_race(probs, self.noise([seqs[row] for row in drawn], num_tokens))
        return tokens.index_copy(0, rows, torch.where(tokens[rows] == NO_TOKEN, NO_TOKEN, winners))

    def probabilities(self, logits: Tensor, seqs: list[Sequence], drawn: list[int]) -> tuple[Tensor, Tensor]:
        """Return the rows that are drawn, [R], and the distribution that each is drawn from, [R, V]."""
        params = [seqs[row].params for row in drawn]
        filtered = [row for row, p in enumerate(params) if is_filtered(p)]
        self.inputs.begin()
        for name, values in (
            ("drawn", drawn),
            ("temperature", map(finite_temperature, params)),
            ("filtered", filtered),
            ("top_k", [min(params[row].top_k, self.vocab_size) for row in filtered]),
            ("top_p", [params[row].top_p for row in filtered]),
        ):
            values = list(values)
            self.inputs.host[name][: len(values)] = values
        self.inputs.upload()
        given = self.inputs.device
        rows = given["drawn"][: len(drawn)]
        logits = logits[rows].float()
        probs = distribution(
            logits - logits.amax(dim=-1, keepdim=True),
            given["temperature"][: len(drawn)],
            given["filtered"][: len(filtered)] if filtered else None,
            given["top_k"][: len(filtered)],
            given["top_p"][: len(filtered)],
        )
        return rows, probs

    def noise(self, seqs: list[Sequence], lengths: list[int]) -> Tensor:
        """Return noise [R, V] from the exponential distribution; a row with a seed has a generator of its own."""
        noise = torch.empty(len(seqs), self.vocab_size, device=self.device).exponential_()
        for row, seq, length in zip(noise, seqs, lengths, strict=True):
            if generator := generator_of(seq, self.device, length):
                row.exponential_(generator=generator)
        return noise
