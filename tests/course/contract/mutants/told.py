"""What an author is told: for each promise a stage that breaks it, and the message. Each is wrong in one thing."""

from __future__ import annotations

import torch
from right_stage import Right

from roseinfer.stage import Stage


class Abstract(Stage):
    def build(self, seqs): ...


class AnySize(Right):
    def __init__(self, model, **sizes):
        super().__init__(model, **{name: max(1, value) for name, value in sizes.items()})


class BuildsNothing(Right):
    def build(self, seqs): ...


class OneDimensionMore(Right):
    def build(self, seqs):
        step = super().build(seqs)
        return lambda layer, q, k, v: step(layer, q, k, v)[:, :, None]


class LongestPosition(Right):
    def positions(self, seqs):
        return [max(seq.num_cached_tokens for seq in seqs)] * len(seqs)


class KeepsBlocks(Right):
    def free(self, seq):
        self.caches.pop(seq.seq_id, None)


class BlocksOf64(Right):
    def append(self, seqs, step):
        if self.block_size == 64:
            super().append(seqs, step)


class KeepsFp32(Right):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k.float(), v.float())


class FreesAnything(Right):
    def free(self, seq):
        if self.holds(seq):
            super().free(seq)


class KeepsCaches(Right):
    def free(self, seq):
        Stage.free(self, seq)


class Deduplicates(Right):
    def decode(self, seqs):
        return super().decode(list(dict.fromkeys(seqs)))


class TakesAnything(Right):
    def check_fits(self, seq): ...


class FailsToFree(Right):
    def free(self, seq):
        Stage.free(self, seq)
        del self.caches[seq.seq_id]


class Swallows(Right):
    def decode(self, seqs):
        try:
            return super().decode(seqs)
        except (RuntimeError, KeyboardInterrupt):
            for seq in seqs:
                seq.num_cached_tokens += 1
            return torch.zeros(len(seqs), self.config.vocab_size)


class FreesTheFinished(Right):
    def free(self, seq):
        if seq.finish_reason:
            super().free(seq)


# (promise, class or name of a mutant, part of the message)
TOLD = [
    ("can_be_made", Abstract, "Abstract lacks append and write_prompt"),
    ("can_be_made", AnySize, "num_blocks=0 is not refused; wanted a ValueError that says 'num_blocks'"),
    ("fits_the_seam", BuildsNothing, "build returned None; the model calls what it returns: step(layer, q, k, v)"),
    ("fits_the_seam", OneDimensionMore, "returned shape (2, 4, 1, 8), expected (2, 4, 8) = [B, H, D]"),
    (
        "one_sequence",
        "s01: v for k in the cat",
        r"sequence 0 of 1, prompt of 5 tokens: token \d is \d+, expected \d+ as the ref",
    ),
    ("equal_lengths", "stage: builds in another order", "sequence 0 of 3, prompt of 6 tokens: token"),
    ("mixed_lengths", LongestPosition, "of 4, prompt of 3 tokens: token 1 is"),
    ("blocks_come_back", KeepsBlocks, "sequence 0 was freed, and stage.holds(seq) is still True"),
    (
        "blocks_come_back",
        "blocks: a free that keeps one",
        "layer 0: block 0 is lost: it is neither free nor held by a sequence",
    ),
    ("blocks_come_back", "blocks: a free that gives one twice", "layer 0: block 0 is free twice"),
    ("block_edges", "s05: min for max", "prompt of 63 tokens: token"),
    ("small_blocks", BlocksOf64, "sequence 0 of 4, prompt of 1 token: token"),
    (
        "rows_in_order",
        "s06: stacks along the layers",
        "two sequences, the second one given first: in row 0 a logit is off by",
    ),
    ("batch_grows_and_shrinks", "ByPlace", "model gpt2, 3 of 6 at once: sequence 1 of 6"),
    ("shared_kv_heads", "s01: tiled heads", "model gpt2, 2 KV heads, 16 of 6 at once"),
    ("llama_families", "s05: scale of 8", "model llama, 3 of 6 at once: sequence"),
    ("equals_transformers", "s01: k written twice", "as transformers has it"),
    ("half_precision", KeepsFp32, "RuntimeError"),
    ("freeing_twice", FreesAnything, "freeing a sequence twice is not refused; wanted a ValueError that says"),
    ("prefilled_again", KeepsCaches, "freed and prefilled again with its output: in its decode a logit is off"),
    ("misuse", Deduplicates, "decoding a sequence twice in one step is not refused"),
    ("never_fits", TakesAnything, "a request that can never fit (150 tokens, max_tokens=100)"),
    ("pool_exhausted", "ReservesOneByOne", "a refused step changed cached tokens and free blocks"),
    ("errors_free_everything", FailsToFree, "KeyboardInterrupt in prefill: the caller gets a KeyError instead, in"),
    ("errors_free_everything", Swallows, "KeyboardInterrupt in decode: the error is swallowed, the caller never hears"),
    ("closed_stream", FreesTheFinished, "with the stream closed in the middle, 6 of 8 blocks are free"),
    ("memory_comes_back", KeepsCaches, "bytes of tensors. What does free leave behind?"),
    ("random_schedules", "ByPlace", r"decode \w+; decode \w+: the logits of \w are not the reference's"),
    ("any_block_size", "SixteenColumns", "block_size=1: in a step of 3 sequences, row 2, of 21 tokens: a logit is off"),
    ("odd_shapes", "GroupsUpTo4", "model groups of 7: in a step of 2 sequences, row 0"),
    ("last_position", "s05: a table of the pool's width", "blocks must be at most max_blocks=11, got 12"),
    ("just_fits", "stage: one position too few", "a prompt of 1 + max_tokens=44 just fits max_model_len=45, and is"),
    ("long_sequences", "PromptOf2048", "lengths from 1 to 4,097: in a step of 7 sequences, row 6, of 4,096 tokens"),
    ("very_long_sequences", "ShortsForLengths", "32,767 tokens and more: in a step of one sequence"),
    ("high_block_ids", "SevenBits", "in blocks 125 to 130, of as many as there are: in a step of 2 sequences"),
    ("very_high_block_ids", "UInt16Ids", "in blocks 65533 to 65538, of as many as there are: in a step"),
    ("many_blocks", "ColumnsInBytes", "256 blocks of 4 tokens, and one more: in a step of 2 sequences, row 0"),
    ("large_batches", "WarpOf64", "in a step of 70 sequences, row 64, of"),
    ("very_large_batches", "RowsInBytes", "in a step of 257 sequences, row 256, of"),
    ("neighbours_come_and_go", "BySequenceModulo", "a sequence that stays while others come and go: in a step of"),
    ("alike_prompts", "LooksAtTheFirstPrompt", "after a prompt that is much like it, in a step of"),
    ("other_blocks", "rows by sequence, first and last", "freed and prefilled again, before in blocks 1, 2"),
    ("two_at_once", "SharedPool", "two stages side by side: in a step of"),
    ("leaves_what_is_yours", "SortsYours", "decode changed the caller's list of sequences"),
    ("leaves_your_model", "RoundsYourWeights", "changes its caller's model when it is made: wte.weight differs"),
    ("leaves_your_model", "s12: packs the caller's model", "c_attn is a PackedLinear now, and was a Linear"),
    ("padding_touches_nothing", "LeftoverPadding", "freed by rows 3 and up, after a step of 3 rows: in a step of one"),
    ("prompts_together", "LastBatchFirst", "prompts of 100, 150, 60, 7, 180, 20 tokens together, first_tokens: row 0"),
    ("failed_choice", "s11: NaN gives a token", "a prompt whose logits are NaN is not refused; wanted a ValueError"),
    ("failed_choice", "CountsBeforeItReads", "a row of NaN is refused: [3, 12] tokens were cached before it"),
    ("chooses_as_sample", "Forgetful", "greedy and drawn rows, token 0 of each: row 1, prompt of 9, SamplingParams("),
    ("failed_steps", "GrowsInTheStep", "made again after a RuntimeError in decode: in a step of 2 sequences"),
    ("errors_anywhere", "GrowsLayerByLayer", "in append, during decode: in a step of 2 sequences, row"),
]
