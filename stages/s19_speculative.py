"""Stage 19, speculative: a step verifies tokens that were guessed, and keeps those that the model would have chosen.

What was slow:  one sequence. A step reads all weights and gives one token. With rows for more tokens it would read them
                once as well, but the next tokens are not known yet.
The change:     they are guessed. Where the last tokens stand earlier in the text, what followed them there is drafted.
                A row for each drafted token joins the decode step. The model chooses a token in every row. As long as a
                draft has the token that was chosen, the next row was computed on the right text. The first row that
                chose another token ends the step, and its choice is kept as well.
What it gives:  up to 1 + num_tokens tokens for one read of the weights, and the same tokens as without drafts.
Where it loses: texts that do not repeat themselves: rejected rows were computed for nothing. Large batches: a step then
                takes longer for each row, whether it is accepted or not. And host and device take turns again: a draft
                needs the last token, so no step is launched before it is read.

Drafted rows take the places that the batch leaves free: sequences and drafts together are at most max_num_seqs rows.
K and V of a rejected token lie after the cached ones: later steps overwrite them before any row reads them, and no key
is made of them. A draft preempts no sequence, but it may evict an idle block of the prefix cache.
Prompt lookup: Saxena, 2023. Verification: Leviathan et al., 2023; Chen et al., 2023. A guess has its whole probability
on one token, so keeping what the model draws is their rejection sampling.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from roseinfer.arguments import require_count
from roseinfer.blocks import OutOfBlocks
from roseinfer.kernels.numba_calls import compiled
from roseinfer.kernels.paged_numba import SUMS
from roseinfer.models import Model
from roseinfer.sequence import Sequence

from .s18_one_kernel import OneKernel, choose, gelu, norm, product

LONGEST, SHORTEST = 4, 2  # how many of the last tokens are looked up


@njit(parallel=True)
def write(heads, k_pool, v_pool, slot_mapping):
    """K and V of all rows: a row may read what another row of its sequence writes, so all are written first."""
    num_heads, block_size = k_pool.shape[1:3]
    for task in prange(len(heads) * num_heads):
        n, h = task // num_heads, task % num_heads
        block, offset = divmod(slot_mapping[n], block_size)
        k_pool[block, h, offset], v_pool[block, h, offset] = heads[n, num_heads + h], heads[n, 2 * num_heads + h]


@njit(parallel=True, fastmath=SUMS)
def attend(out, heads, k_pool, v_pool, context_lens, block_tables):
    """As stage 18's, without writing. context_lens: of each row, so a row sees no later row of its sequence."""
    num_heads, block_size, head_dim = k_pool.shape[1:]
    scale = np.float32(head_dim) ** np.float32(-0.5)
    for task in prange(len(heads) * num_heads):
        n, h = task // num_heads, task % num_heads
        scores = np.empty(context_lens[n], np.float32)
        for t in range(len(scores)):
            key, score = k_pool[block_tables[n, t // block_size], h, t % block_size], np.float32(0)
            for d in range(head_dim):
                score += heads[n, h, d] * key[d]
            scores[t] = score * scale
        top, total = scores.max(), np.float32(0)
        out[n, h] = 0
        for t in range(len(scores)):
            weight, value = np.exp(scores[t] - top), v_pool[block_tables[n, t // block_size], h, t % block_size]
            total += weight
            for d in range(head_dim):
                out[n, h, d] += weight * value[d]
        out[n, h] /= total


@compiled()
def verify_kernel(w, eps, token_ids, positions, slot_mapping, context_lens, block_tables, pool, logits, tokens):
    """As decode_kernel, for rows of which several may belong to one sequence."""
    num_rows, width = len(token_ids), w.tokens.shape[1]
    x, qkv = np.empty((num_rows, width), np.float32), np.empty((num_rows, 3 * width), np.float32)
    y, z, mid = np.empty_like(x), np.empty_like(x), np.empty((num_rows, w.up.shape[1]), np.float32)
    heads, out = qkv.reshape(num_rows, -1, pool.shape[5]), y.reshape(num_rows, -1, pool.shape[5])  # the same memory
    for n in range(num_rows):
        x[n] = w.tokens[token_ids[n]] + w.positions[positions[n]]
    for i in range(len(w.qkv)):
        norm(y, x, w.norm_1[i], eps)
        product(qkv, y, w.qkv[i], w.qkv_bias[i])
        write(heads, pool[0, i], pool[1, i], slot_mapping)
        attend(out, heads, pool[0, i], pool[1, i], context_lens, block_tables)
        product(z, y, w.out[i], w.out_bias[i])
        x += z
        norm(y, x, w.norm_2[i], eps)
        product(mid, y, w.up[i], w.up_bias[i])
        gelu(mid)
        product(z, mid, w.down[i], w.down_bias[i])
        x += z
    norm(y, x, w.last_norm, eps)
    product(logits, y, w.head, w.head_bias)
    choose(tokens, logits)


class Speculative(OneKernel):
    """OneKernel whose decode steps verify drafts. num_tokens: of a draft, at most.

    num_drafted, num_accepted: tokens so far. Override draft to guess in another way.
    Raises ValueError for num_tokens below 1.
    """

    name = "s19_speculative"
    kernel = staticmethod(verify_kernel)

    def __init__(self, model: Model, *, num_blocks: int, num_tokens: int = 4, **settings: Any) -> None:
        require_count("num_tokens", num_tokens, at_least=1)
        super().__init__(model, num_blocks=num_blocks, **settings)
        self.num_tokens, self.tokens_per_step = num_tokens, 1 + num_tokens
        self.num_drafted = self.num_accepted = 0

    def draft(self, seq: Sequence, num_tokens: int) -> list[int]:
        """At most num_tokens tokens: those that followed the last tokens at their last earlier place."""
        text = seq.token_ids
        for size in range(LONGEST, SHORTEST - 1, -1):
            for end in range(len(text) - 1, size - 1, -1):
                if text[end - 1] == text[-1] and text[end - size : end] == text[-size:]:  # the first alone is fast
                    return text[end : end + num_tokens]
        return []

    def step(self) -> list[Sequence]:
        """Run one step, in turn; return the sequences that got tokens. Raises, and drops a step, as stage 16."""
        if not self.has_work:
            raise ValueError("step needs a sequence that waits or runs: add one first")
        try:
            seqs, num_new = self.schedule()
            is_decode = sum(num_new) == len(self.chosen(seqs, num_new))
            drafts = self.drafts(seqs) if is_decode else []
            if not any(drafts):
                self.launch(seqs, num_new)
                return self.finish()
            rows = [row for seq, draft in zip(seqs, drafts, strict=True) for row in rows_of(seq, draft)]
            self.launch(rows, [1] * len(rows))
            return self.finish_drafts(seqs, drafts)
        except BaseException:
            self.drop()
            raise

    def drafts(self, seqs: list[Sequence]) -> list[list[int]]:
        """A draft for each sequence, as long as there are rows, free blocks and tokens to come for it: maybe []."""
        drafts: list[list[int]] = []
        room = self.max_num_seqs - len(seqs)
        for seq in seqs:
            most = min(self.num_tokens, room, seq.max_len - len(seq) - 1)
            draft = self.draft(seq, most)[:most] if most > 0 else []
            if not all(0 <= token < self.config.vocab_size for token in draft):  # the kernel checks no index
                raise ValueError(f"a draft must be token ids from 0 to {self.config.vocab_size - 1}, got {draft}")
            try:
                self.tables.reserve({seq.seq_id: len(seq) + len(draft)})
            except OutOfBlocks:  # a draft preempts no sequence
                draft = []
            drafts.append(draft)
            room -= len(draft)
        return drafts

    def finish_drafts(self, seqs: list[Sequence], drafts: list[list[int]]) -> list[Sequence]:
        """Finish the step in flight: commit the tokens of each sequence one after another, as steps would have."""
        step = self.in_flight[0]
        step.launched.result()
        step.side.wait()
        chosen = iter(step.side.tokens[: step.num_rows].tolist())
        kept = [verified(draft, [next(chosen) for _ in range(len(draft) + 1)]) for draft in drafts]
        self.read(torch.tensor([tokens[-1] for tokens in kept]), seqs)  # -1 is no draft's, so it is the last one kept
        del self.in_flight[0]
        self.num_drafted += sum(map(len, drafts))
        self.num_accepted += sum(len(tokens) - 1 for tokens in kept)
        for i in range(max(map(len, kept))):
            going_on = [
                (seq, tokens[i])
                for seq, tokens in zip(seqs, kept, strict=True)
                if i < len(tokens) and not seq.finish_reason
            ]
            for seq, _ in going_on:
                seq.num_cached_tokens += 1
            self.commit([seq for seq, _ in going_on], [token for _, token in going_on])
        for seq in seqs:
            if not seq.finish_reason:
                self.tables.trim(seq.seq_id, seq.num_cached_tokens)
        return seqs


def rows_of(seq: Sequence, draft: list[int]) -> list[Sequence]:
    """The sequence, and for each drafted token a copy that ends with it: a step computes the last token of each."""
    rows = [seq]
    for n in range(1, len(draft) + 1):
        rows.append(copy(seq))
        rows[n].token_ids = seq.token_ids + draft[:n]
        rows[n].num_cached_tokens += n
    return rows


def verified(draft: list[int], chosen: list[int]) -> list[int]:
    """The tokens to keep. chosen[i]: by the model, after the text and draft[:i]."""
    num_right = 0
    while num_right < len(draft) and draft[num_right] == chosen[num_right]:
        num_right += 1
    return chosen[: num_right + 1]
