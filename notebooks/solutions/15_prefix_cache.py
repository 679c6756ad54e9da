# --- 15.1
from array import array
from hashlib import sha256


def keys_of(token_ids, block_size):
    keys, before = [], b""
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = token_ids[start : start + block_size]
        before = sha256(before + array("q", tokens).tobytes()).digest()
        keys.append(before)
    return keys


# --- 15.2
def plan(prompt_len, found, block_size):
    leading = (found + [False]).index(False)
    num_cached = min(leading * block_size, prompt_len - 1)
    num_shared = num_cached // block_size
    num_new = -(-prompt_len // block_size) - num_shared
    return num_cached, num_shared, num_new


# --- 15.3
def replay(events, num_blocks):
    holders, idle = {}, {}
    hits, evicted = 0, []
    for what, text in events:
        if what == "drop":
            holders[text] -= 1
            if not holders[text]:
                idle[text] = None
            continue
        if text in holders:
            hits += 1
            idle.pop(text, None)
        elif len(holders) == num_blocks:
            oldest = next(iter(idle))
            del idle[oldest], holders[oldest]
            evicted.append(oldest)
        holders[text] = holders.get(text, 0) + 1
    return hits, evicted


# --- 15.4
from collections import Counter


class OwnTables(SharedTables):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.times_shared = Counter()

    def share(self, seq_id, blocks):
        super().share(seq_id, blocks)
        self.times_shared.update(blocks)

    def evict(self):
        """Evict the block that was shared the fewest times; of equals, the one that has been idle longest."""
        block = min(self.idle, key=self.times_shared.__getitem__)
        del self.idle[block], self.block_of[self.key_of.pop(block)], self.times_shared[block]
        return block


class OwnCache(PrefixCache):
    def __init__(self, model, *, num_blocks, block_size=64, **sizes):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, **sizes)
        self.tables = OwnTables(num_blocks, block_size)
