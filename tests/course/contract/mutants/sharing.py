"""Prefix caches that find the wrong text, free what is in use, or write into what is shared: slips in stage 15."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from stages import PrefixCache

from .mutant import by_hand, edit

S15 = PrefixCache
KEY = 'sha256(before + array("q", token_ids).tobytes()).digest()'
SHARED, APART, COPIES = "shared_beginnings", "told_apart_by_all_tokens", "samples_of_a_prompt"


class CopiesTooLate(PrefixCache):
    """A shared block is copied after the step that writes to the copy."""

    def run(self, seqs, num_new):
        copies, self.copies = self.copies, {}
        tokens = super().run(seqs, num_new)
        self.copies = copies
        return tokens


MUTANTS = (
    edit(S15, "keys without the text before", KEY, 'sha256(array("q", token_ids).tobytes()).digest()', APART),
    edit(S15, "keys of the last token", KEY, 'sha256(before + array("q", token_ids[-1:]).tobytes()).digest()', APART),
    edit(S15, "keys in any order", KEY, 'sha256(before + array("q", sorted(token_ids)).tobytes()).digest()', APART),
    edit(S15, "keys of joined digits", KEY, 'sha256(before + "".join(map(str, token_ids)).encode()).digest()', APART),
    edit(S15, "keys in 8 bits", KEY, 'sha256(before + bytes(token % 256 for token in token_ids)).digest()',
         "token_ids_of_any_size"),
    edit(S15, "keys in 16 bits", KEY, 'sha256(before + array("H", [token % 2**16 for token in token_ids]).tobytes()).digest()',
         "token_ids_of_any_size"),
    edit(S15, "2 bytes of a key", KEY, KEY + "[:2]", "many_texts"),
    edit(S15, "all of a prompt is found", "min(len(blocks) * self.block_size, len(seq) - 1)", "len(blocks) * self.block_size",
         SHARED),
    edit(S15, "a sample writes into its parent's block", "shared = blocks[:num_full]", "shared = blocks[: num_full + (rest > 0)]",
         COPIES),
    edit(S15, "free although others hold it", "elif not self.ref_counts[block]:", "else:", SHARED),
    edit(S15, "evicted, and still found", "del self.idle[block], self.block_of[self.key_of.pop(block)]",
         "del self.idle[block]\n        self.key_of.pop(block)", SHARED, APART),
    edit(S15, "found before it is computed", "n, blocks = seq.num_cached_tokens // self.block_size,",
         "n, blocks = len(seq) // self.block_size,", "aborted_anywhere"),
    edit(S15, "no wait for the parent", "if parent and self.holds(parent) and parent.num_cached_tokens", "if False and parent.num_cached_tokens",
         COPIES),
    edit(S15, "keys of an older prompt", "seq.block_keys.clear()", "seq.block_keys[:] = [b'0']", SHARED, APART),
    by_hand(CopiesTooLate, COPIES),
)  # fmt: skip
