"""Stages with a queue that look at each of their steps; with a model, or with texts in its place."""

from __future__ import annotations

import torch
from oracles import assert_logits_close, model_of, prompts_of

from roseinfer.generate import begin
from roseinfer.sequence import SamplingParams, Sequence

MODEL = model_of("gpt2")
LENGTHS = (5, 1, 13, 8, 30)


def ready(stage_class, model, lengths, block_size=64):
    """A stage and a batch of such prompts that is ready to decode for up to 60 tokens."""
    stage = stage_class(model, num_blocks=8 * len(lengths), block_size=block_size)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    return stage, begin(stage, prompts_of(lengths, model.config.vocab_size), params)


def running(stage_class, model, **sizes):
    """A batch of mixed lengths over a pool of NaN, which would spread if a slot without a token were read."""
    stage = stage_class(model, num_blocks=40, block_size=8, **sizes)
    stage.pool.fill_(torch.nan)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    return stage, begin(stage, prompts_of(LENGTHS, model.config.vocab_size), params)


@torch.inference_mode()
def assert_decodes_as(stage_class, other_class, make, sizes):
    """Steps of batches of these sizes give the other stage's logits, and leave its K and V."""
    (ours, our_seqs), (theirs, their_seqs) = (running(each, make()) for each in (stage_class, other_class))
    for size in sizes:
        logits, wanted = ours.decode(our_seqs[:size]), theirs.decode(their_seqs[:size])
        assert_logits_close(logits, wanted)
        for seqs in (our_seqs, their_seqs):
            for seq, row in zip(seqs[:size], wanted, strict=False):
                seq.append(int(row.argmax()))
    blocks = slice(0, 40)  # without the block of padding rows
    torch.testing.assert_close(ours.pool[:, :, blocks], theirs.pool[:, :, blocks], rtol=1e-4, atol=1e-4, equal_nan=True)


class Checked:
    """Each step is looked at before it runs."""

    def schedule(self):
        oldest = self.running[0] if self.running else None
        seqs, num_new = super().schedule()
        assert seqs, "empty while there is work"
        assert sum(num_new) <= self.max_num_batched_tokens
        assert len(set(seqs)) == len(seqs) <= self.max_num_seqs
        left = [len(seq) - seq.num_cached_tokens - n for seq, n in zip(seqs, num_new, strict=True)]
        assert min(num_new) >= 1 and min(left) >= 0 and not any(left[:-1]), "only the last one may be cut"
        assert oldest is None or oldest in self.running, "the oldest was preempted"
        for seq, n in zip(seqs, num_new, strict=True):
            assert len(self.tables.of(seq.seq_id, 0)) * self.block_size >= seq.num_cached_tokens + n
        self.check()
        return seqs, num_new

    def check(self):
        self.tables.check()
        assert set(self.tables.seq_ids) == {seq.seq_id for seq in self.running}
        assert not set(self.running) & set(self.waiting)
        assert all(not seq.num_cached_tokens for seq in self.waiting)


class Texts(Checked):
    """The text that each slot stands for, instead of a model: what is read must be the reader's own text. The next
    token is the sum of a text, modulo 7."""

    def run(self, seqs, num_new):
        texts, copies = self.__dict__.setdefault("texts", {}), self.__dict__.get("copies", {})
        old = {block: [texts.get((source, i)) for i in range(self.block_size)] for block, source in copies.items()}
        texts.update({(block, i): text for block, slots in old.items() for i, text in enumerate(slots)})
        copies.clear()
        for seq, n in zip(seqs, num_new, strict=True):
            blocks, size = self.tables.of(seq.seq_id, 0), self.block_size
            for p in range(seq.num_cached_tokens + n):
                block, text = blocks[p // size], tuple(seq.token_ids[: p + 1])
                if p >= seq.num_cached_tokens:
                    self.check_own(block)
                    texts[block, p % size] = text
                assert texts[block, p % size] == text, "another sequence's K and V"
            seq.num_cached_tokens += n
        return [sum(seq.token_ids) % 7 for seq in seqs if seq.num_cached_tokens == len(seq)]

    def check_own(self, block):
        """A block that is written."""
        if hasattr(self.tables, "ref_counts"):
            assert self.tables.ref_counts[block] == 1 and block not in self.tables.key_of, "a shared write"


def request(prompt, max_tokens=6, parent=None, **params):
    return Sequence(list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params), parent=parent)
