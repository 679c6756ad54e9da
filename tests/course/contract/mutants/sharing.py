"""Prefix caches that find the wrong text, free what is in use, or write into what is shared: slips in stage 15."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from course.contract.small_models import MANY_IDS, prompts_of
from stages import PrefixCache

from .mutant import by_hand, edit
from .queue_demonstrations import any_of, in_turn, served

S15 = PrefixCache
KEY = 'sha256(before + array("q", token_ids).tobytes()).digest()'
EXACT = in_turn([7, 3, 9], [7, 3, 9], [7, 3, 9])
TOGETHER = served("+a9*9 s2 +b12=8a*3 s2 +c12=8a*7 s4 +d14*5 +e10*6 s2 +f12=8a*4")
TIGHT = served("+a9*3 s4 +b12*3 s4 +c12*7 s4 +d14=8a*5 +e12=8b*6 s2 +f12=8a*4 s9 +g12=8b*3 s9 +h12=8c*3", num_blocks=7)
SAMPLES = any_of(
    *(
        served(f"+a{length}*12? s{steps} +b:a*6 +c:a*8 s +d9*4", max_num_batched_tokens=5)
        for length in (3, 5, 6, 7)
        for steps in (1, 2, 4)
    )
)
AT_ONCE = any_of(*(served(f"+a{length}*12? +b:a*6 +c:a*8") for length in (3, 5, 6, 7)))
SHARED = ("shared_beginnings",)
APART = ("told_apart_by_all_tokens",)
COPIES = ("samples_of_a_prompt",)


class CopiesTooLate(PrefixCache):
    """A shared block is copied after the step that writes to the copy."""

    def run(self, seqs, num_new):
        copies, self.copies = self.copies, {}
        tokens = super().run(seqs, num_new)
        self.copies = copies
        return tokens


def keys(name: str, key: str, shows, *named: str):
    return edit(S15, name, KEY, key, shows, *named)


MUTANTS = (
    keys("keys without the text before", 'sha256(array("q", token_ids).tobytes()).digest()',
         in_turn([17, 72, 8, 32, 15, 63, 57, 60], [15, 63, 57, 60, 62, 3, 49]), *APART, *SHARED),
    edit(S15, "keys of the first block and this one", "keys[-1] if keys", "keys[0] if keys",
         in_turn([*range(4), *range(90, 94)], [*range(12)], [*range(4), *range(90, 94), *range(8, 12)]), *APART),
    keys("keys of the last token", 'sha256(before + array("q", token_ids[-1:]).tobytes()).digest()',
         in_turn([1, 2, 3, 4], [9, 8, 7, 4]), *APART),
    keys("keys in any order", 'sha256(before + array("q", sorted(token_ids)).tobytes()).digest()',
         in_turn([55, 77, 0, 89], [89, 0, 77, 55]), *APART),
    keys("keys of joined digits", 'sha256(before + "".join(map(str, token_ids)).encode()).digest()',
         in_turn([1, 11, 57, 34], [11, 1, 57, 34]), *APART),
    keys("keys in 8 bits", 'sha256(before + bytes(token % 256 for token in token_ids)).digest()',
         in_turn([257, 2, 3, 4], [1, 2, 3, 4], model=MANY_IDS), "token_ids_of_any_size"),
    keys("keys in 16 bits", 'sha256(before + array("H", [token % 2**16 for token in token_ids]).tobytes()).digest()',
         in_turn([1 + 2**16, 2, 3, 4], [1, 2, 3, 4], model=MANY_IDS), "token_ids_of_any_size"),
    keys("2 bytes of a key", KEY + "[:2]",
         in_turn(*prompts_of([16] * 300, 97), block_size=2, num_blocks=3_000), "many_texts"),
    edit(S15, "all of a prompt is found", "min(len(blocks) * self.block_size, len(seq) - 1)", "len(blocks) * self.block_size",
         EXACT, *SHARED, *APART),
    edit(S15, "no copy", "        if rest:\n", "        if False:\n", SAMPLES, *COPIES, *SHARED),
    edit(S15, "a sample writes into its parent's block", "shared = blocks[:num_full]", "shared = blocks[: num_full + (rest > 0)]",
         SAMPLES, *COPIES),
    edit(S15, "free although others hold it", "elif not self.ref_counts[block]:", "else:", TOGETHER, *SHARED, *COPIES),
    edit(S15, "one holder, however many", "self.ref_counts[block] += 1", "self.ref_counts[block] = 1", TOGETHER, *SHARED),
    edit(S15, "idle although it is held", "self.idle.pop(block, None)", "pass", TIGHT, *SHARED),
    edit(S15, "evicted, and still found", "del self.idle[block], self.block_of[self.key_of.pop(block)]",
         "del self.idle[block]\n        self.key_of.pop(block)", TIGHT, *SHARED, *APART),
    edit(S15, "found before it is computed", "n, blocks = seq.num_cached_tokens // self.block_size,",
         "n, blocks = len(seq) // self.block_size,",
         served("+a30*3 s -a +b30=28a*3", max_num_batched_tokens=9), "aborted_anywhere"),
    edit(S15, "idle blocks count twice", " + sum(block in self.tables.idle for block in shared)", "", TIGHT, *SHARED),
    edit(S15, "no wait for the parent", "if parent and self.holds(parent) and parent.num_cached_tokens", "if False and parent.num_cached_tokens",
         AT_ONCE, *COPIES),
    edit(S15, "keys of an older prompt", "seq.block_keys.clear()", "seq.block_keys[:] = [b'0']",
         in_turn([1, 2, 3, 4], [5, 6, 7, 8]), *APART, *SHARED),
    by_hand(CopiesTooLate, SAMPLES, *COPIES),
)  # fmt: skip
