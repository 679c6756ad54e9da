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


# --- 15.5
from stages import PrefixCache


class MyPrefixCache(PrefixCache):
    def find(self, seq):
        blocks = []
        for key in self.keys(seq, len(seq) // self.block_size):
            if key not in self.tables.block_of:
                break
            blocks.append(self.tables.block_of[key])
        num_cached = min(len(blocks) * self.block_size, len(seq) - 1)
        if seq.parent and self.holds(seq.parent):
            of_parent = min(seq.parent.num_prompt_tokens, len(seq) - 1)
            if of_parent > num_cached:
                return self.tables.of(seq.parent.seq_id, 0), of_parent
        return blocks, num_cached

    def admit(self, seq):
        parent = seq.parent
        if parent and self.holds(parent) and parent.num_cached_tokens < parent.num_prompt_tokens:
            return False
        blocks, num_cached = self.find(seq)
        num_full, rest = divmod(num_cached, self.block_size)
        shared = blocks[:num_full]
        needed = self.tables.blocks_for(len(seq)) - num_full + sum(block in self.tables.idle for block in shared)
        if len(self.tables) == self.max_num_seqs or needed > self.tables.num_free:
            return False
        source = self.copies.get(blocks[num_full], blocks[num_full]) if rest else None
        self.tables.share(seq.seq_id, shared)
        self.tables.reserve({seq.seq_id: len(seq)})
        if rest:
            self.copies[self.tables.of(seq.seq_id, 0)[num_full]] = source
        seq.num_cached_tokens = num_cached
        self.waiting.remove(seq)
        self.running.append(seq)
        self.num_asked_tokens += len(seq)
        self.num_found_tokens += num_cached
        return True

    def commit(self, seqs, tokens):
        for seq in seqs:
            num_full, blocks = seq.num_cached_tokens // self.block_size, self.tables.of(seq.seq_id, 0)
            for key, block in zip(self.keys(seq, num_full), blocks, strict=False):
                if key not in self.tables.block_of:
                    self.tables.put(key, block)
        return super().commit(seqs, tokens)
