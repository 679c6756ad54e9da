"""PrefixCache: full blocks whose K and V are computed, found again by their tokens and by all tokens before them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256

from roseinfer.sequence import Sequence


def block_key(before: bytes, token_ids: list[int]) -> bytes:
    """Return a full block's key: sha256 over the key of the block before and its own tokens, so over the whole text."""
    return sha256(before + array("q", token_ids).tobytes()).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A block that can be found by its text.

    before: the entry of the block before it in the text, None for the first. after: the entries that continue it.
    """

    key: bytes
    block: int
    token_ids: list[int]
    before: Entry | None
    after: set[Entry] = field(default_factory=set, repr=False)


class PrefixCache:
    """Finds blocks by the text that they hold, for one model and one dtype.

    A key only finds an entry. The entry counts as a hit only when its tokens, and the entry before it, are the ones
    that were looked for, so keys that collide cost a hit and never an output. (vLLM's "automatic prefix caching" trusts
    its keys.)
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.entries: dict[bytes, Entry] = {}
        self.of_block: dict[int, Entry] = {}
        # Blocks with an entry that stand in no table, those that were released last at the end.
        self.idle: OrderedDict[int, None] = OrderedDict()
        # Entries of prompts that are not done: whether their K and V are finite shows in the logits after the prompt.
        self.unproven: set[Entry] = set()
        self.num_asked_tokens = self.num_found_tokens = 0
        self._computing: set[bytes] = set()

    @property
    def hit_rate(self) -> float:
        """The share of tokens that were found, counted over all sequences each time that they joined."""
        return self.num_found_tokens / self.num_asked_tokens if self.num_asked_tokens else 0.0

    def find(self, seq: Sequence) -> list[Entry]:
        """Return the entries of a sequence's full blocks, from the first one to the last that is in the cache."""
        found: list[Entry] = []
        for i, key in enumerate(self._keys(seq, len(seq) // self.block_size)):
            entry = self.entries.get(key)
            if not entry or not self._is(entry, found[-1] if found else None, self._tokens(seq, i)):
                break
            found.append(entry)
        return found

    def is_being_computed(self, seq: Sequence) -> bool:
        """Whether another sequence is computing the first of this one's full blocks that is not in the cache."""
        for key in self._keys(seq, len(seq) // self.block_size):
            if key not in self.entries:
                return key in self._computing
        return False

    def claim(self, seq: Sequence, num_found: int) -> list[bytes]:
        """Mark a sequence's full blocks after the first num_found as being computed, and return their keys."""
        claimed = seq.block_keys[num_found:]
        self._computing.update(claimed)
        return claimed

    def unclaim(self, claimed: list[bytes]) -> None:
        """Forget that blocks with these keys are being computed."""
        self._computing.difference_update(claimed)

    def put(self, seq: Sequence, index: int, block: int, before: Entry | None) -> Entry | None:
        """Let a block be found as the sequence's block number `index`, and return its entry.

        Return the earlier entry with the same text if there is one; None where another text has the key, and where the
        block before it is not found any more.
        """
        key, token_ids = self._keys(seq, index + 1)[index], self._tokens(seq, index)
        self._computing.discard(key)
        if before and self.entries.get(before.key) is not before:
            return None
        if entry := self.entries.get(key):
            return entry if self._is(entry, before, token_ids) else None
        assert block not in self.of_block, f"block {block} has two texts"
        self.entries[key] = self.of_block[block] = entry = Entry(key, block, token_ids, before)
        self.unproven.add(entry)
        if before:
            before.after.add(entry)
        return entry

    def evict(self) -> int:
        """Evict the block idle longest among those without a successor, and return it.

        If every idle block has a successor, the successors are held: copies of the idle block were computed at the
        same time. They leave the cache with it.
        """
        ends = (block for block in self.idle if not self.of_block[block].after)
        last_idle = (block for block in self.idle if not any(e.block in self.idle for e in self._from(block)[1:]))
        block = next(ends, None)
        [block] = self.forget(self.of_block[next(last_idle) if block is None else block])
        return block

    def forget(self, entry: Entry) -> list[int]:
        """Remove an entry and all its successors from the cache. Return those of their blocks that were idle."""
        if entry.before:
            entry.before.after.discard(entry)
        freed = []
        for gone in self._from(entry.block):
            del self.entries[gone.key], self.of_block[gone.block]
            self.unproven.discard(gone)
            if gone.block in self.idle:
                del self.idle[gone.block]
                freed.append(gone.block)
        return freed

    def check(self) -> None:
        """Check that every entry is found by its key and by its block, and that only blocks with an entry are idle."""
        assert {entry.block: entry for entry in self.entries.values()} == self.of_block, "entries and blocks differ"
        assert all(key == entry.key for key, entry in self.entries.items()), "an entry under another key"
        assert all(len(entry.token_ids) == self.block_size for entry in self.entries.values()), "a block is not full"
        assert self.idle.keys() <= self.of_block.keys(), "an idle block without an entry"
        for entry in self.entries.values():
            before = entry.before
            found = before is None or (self.entries.get(before.key) is before and entry in before.after)
            assert found, "the predecessor of an entry is missing"
            for after in entry.after:
                assert self.entries.get(after.key) is after, "a successor of an entry is missing"
        assert self.unproven <= {*self.entries.values()}, "an entry is unproven and not there"

    def _from(self, block: int) -> list[Entry]:
        """Return the entry of a block, and then all that go on from it."""
        entries = [self.of_block[block]]
        for entry in entries:
            entries += entry.after
        return entries

    def _keys(self, seq: Sequence, num_blocks: int) -> list[bytes]:
        """Return the keys of the sequence's first blocks. The sequence keeps them, so no token is hashed twice."""
        keys = seq.block_keys
        for i in range(len(keys), num_blocks):
            keys.append(block_key(keys[-1] if keys else b"", self._tokens(seq, i)))
        return keys

    def _tokens(self, seq: Sequence, index: int) -> list[int]:
        return seq.token_ids[index * self.block_size : (index + 1) * self.block_size]

    @staticmethod
    def _is(entry: Entry, before: Entry | None, token_ids: list[int]) -> bool:
        return entry.before is before and entry.token_ids == token_ids
