"""Log-probabilities of a step's tokens and of a prompt's, computed only for the requests that ask for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.graphs.upload import uploaded
from roseinfer.models import Model
from roseinfer.sampling import NO_TOKEN
from roseinfer.sequence import Logprob, Sequence

PROMPT_ROWS = 256  # of a prompt's logits at a time: all of a long one's may not fit the memory


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probabilities of the tokens that one step chose, a row for each of seqs, on the host as soon as these are.

    ids, values [R, 1 + K]: the chosen token, then the K likeliest ones. ranks [R]: the rank of the chosen token.
    """

    seqs: list[Sequence]
    ids: Tensor
    values: Tensor
    ranks: Tensor

    def report(self) -> None:
        """Write the log-probabilities to the sequences, for the tokens that each is about to get.

        Call it once the step's tokens are on the host. With drafts a sequence has several rows, one after another; the
        scheduler drops those of rejected tokens.
        """
        before, at = None, 0
        rows = self.ids.tolist(), self.values.tolist(), self.ranks.tolist()
        for seq, ids, values, rank in zip(self.seqs, *rows, strict=True):
            at = at + 1 if seq is before else len(seq) - seq.num_prompt_tokens
            before = seq
            if seq.finish_reason or ids[0] == NO_TOKEN:
                continue  # it ended while this step was in flight, or ends with this step
            assert seq.params.logprobs is not None and seq.logprobs is not None, "it asked for them"
            n = 1 + seq.params.logprobs
            # At its place, so that a step which is made again after an error reports once.
            seq.logprobs[at:] = [entries(ids[:n], values[:n], rank)]


def step_logprobs(logits: Tensor, tokens: Tensor, seqs: list[Sequence]) -> StepLogprobs:
    """Return log-probabilities of a step's logits [B, V] and of the tokens [B] chosen from them.

    The logits are the model's, before all changes, temperature and filters. At least one of seqs asks for them.
    """
    asking = [seq for seq in seqs if seq.params.logprobs is not None]
    rows = uploaded([row for row, seq in enumerate(seqs) if seq.params.logprobs is not None], logits.device)
    most = max(seq.params.logprobs or 0 for seq in asking)
    found = chosen_and_likeliest(logits[rows], tokens[rows], most)
    # Copied now: later, the copy would wait in the stream for the step that is launched next.
    return StepLogprobs(asking, *(x.to("cpu", non_blocking=True) for x in found))


def chosen_and_likeliest(logits: Tensor, chosen: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids and log-probabilities, both [R, 1 + K], and the ranks [R] of the chosen tokens.

    In each row the chosen token [R] comes first, then the `most` likeliest ones by logits [R, V].
    """
    log_probs = logits.float().log_softmax(dim=-1)
    likeliest, ids = log_probs.topk(min(most, log_probs.size(-1)))
    values = log_probs.gather(1, chosen[:, None].clamp(min=0))  # of NO_TOKEN, any
    ranks = 1 + (log_probs > values).sum(dim=-1)
    return torch.cat([chosen[:, None], ids], 1), torch.cat([values, likeliest], 1), ranks


def entries(ids: list[int], values: list[float], rank: int) -> dict[int, Logprob]:
    """Return Logprobs by token id: first of the chosen token, which is ids[0], then of the likeliest in their order."""
    found = {ids[0]: Logprob(values[0], rank)}
    for place, (token, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1):
        found.setdefault(token, Logprob(value, place))
    return found


def prompt_logprobs(model: Model, token_ids: list[int], hidden: Tensor, most: int) -> list[dict[int, Logprob] | None]:
    """Return log-probabilities of a prompt's tokens, each given those before it, and of the `most` likeliest tokens.

    The first token has None. hidden [N, C]: what the model makes of the prompt. Raises ValueError for logits that are
    not finite.
    """
    tokens = torch.tensor(token_ids, device=model.device)
    found: list[dict[int, Logprob] | None] = [None]
    for begin in range(0, len(token_ids) - 1, PROMPT_ROWS):
        after = tokens[begin + 1 : begin + 1 + PROMPT_ROWS]
        logits = model.logits(hidden[begin : begin + len(after)])
        if not bool(logits.amax(dim=-1).isfinite().all()):
            raise ValueError("logits must be finite, those of a prompt with prompt_logprobs have NaN or infinity")
        ids, values, ranks = chosen_and_likeliest(logits, after, most)
        found += map(entries, ids.tolist(), values.tolist(), ranks.tolist())
    return found
