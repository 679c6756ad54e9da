"""Log-probabilities of a step's tokens, for the sequences that ask for them; for the others nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.sampling import NO_TOKEN
from roseinfer.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """ids, values [R, 1 + K] on the device, a row for each of seqs: the chosen token, then the K likeliest ones."""

    seqs: list[Sequence]
    ids: Tensor
    values: Tensor

    def report(self) -> None:
        """Write them to the sequences, as those of the tokens that each is about to get. Waits for the device. With
        drafts a sequence has several rows, one after another; the scheduler drops those of tokens that do not hold."""
        before, at = None, 0
        for seq, ids, values in zip(self.seqs, self.ids.tolist(), self.values.tolist(), strict=True):
            at = at + 1 if seq is before else len(seq) - seq.num_prompt_tokens
            before = seq
            if seq.finish_reason or ids[0] == NO_TOKEN:
                continue  # it ended while this step was in flight, or ends with this step
            assert seq.params.logprobs is not None and seq.logprobs is not None, "it asked for them"
            n = 1 + seq.params.logprobs
            # At its place, so that a step which is made again after an error reports once.
            seq.logprobs[at:] = [dict(zip(ids[:n], values[:n], strict=True))]


def step_logprobs(logits: Tensor, tokens: Tensor, seqs: list[Sequence]) -> StepLogprobs:
    """Log-probabilities of logits [B, V] as the model gives them, before temperature and filters, and of the tokens [B]
    chosen from them. At least one of seqs asks for them."""
    rows = [row for row, seq in enumerate(seqs) if seq.params.logprobs is not None]
    asking = [seqs[row] for row in rows]
    log_probs = logits[rows].float().log_softmax(dim=-1)
    most = min(max(seq.params.logprobs or 0 for seq in asking), log_probs.size(-1))
    likeliest, ids = log_probs.topk(most)
    chosen = tokens[rows, None]
    values = log_probs.gather(1, chosen.clamp(min=0))  # of NO_TOKEN, any
    return StepLogprobs(asking, torch.cat([chosen, ids], 1), torch.cat([values, likeliest], 1))
