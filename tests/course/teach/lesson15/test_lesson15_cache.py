"""Lesson 15, eviction and the learner's policy: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import pytest
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import PrefixCache, TokenBudget
from stages.s15_prefix_cache import SharedTables

pytestmark = pytest.mark.slow


replay = solution("15.3")


test_wrong_evictions = wrong_answers(
    "15.3",
    {
        "the caller's events used up": (
            lambda *case: (replay(*case), case[0].clear())[0],
            "which is the caller's: make a copy",
        ),
        "two holders at most": (
            solution("15.3", {"holders.get(text, 0) + 1": "min(2, holders.get(text, 0) + 1)"}),
            "evicted: you return",
        ),
        "six texts": (lambda events, n: replay([(what, text % 6) for what, text in events], n), "hits: you return"),
    },
)


def by_slots(events, num_blocks):
    """A list of blocks, as a pool has them."""
    texts, refs, order = [None] * num_blocks, [0] * num_blocks, list(range(num_blocks))
    hits, evicted = 0, []
    for what, text in events:
        if what == "hold" and text not in texts:
            block = next(b for b in order if refs[b] == 0)
            if texts[block] is not None:
                evicted.append(texts[block])
            texts[block] = text
        elif what == "hold":
            hits += 1
            block = texts.index(text)
        else:
            block = texts.index(text)
            order.remove(block)
            order.append(block)
        refs[block] += 1 if what == "hold" else -1
    return hits, evicted


test_right_evictions = right_answers("15.3", {"slots": by_slots, "a list": lambda *case: list(replay(*case))})


# 15.4


def cache_with(tables_class, **methods):
    class OwnCache(PrefixCache):
        def __init__(self, model, *, num_blocks, block_size=64, **sizes):
            super().__init__(model, num_blocks=num_blocks, block_size=block_size, **sizes)
            self.tables = tables_class(num_blocks, block_size)

    for name, method in methods.items():
        setattr(OwnCache, name, method)
    return OwnCache


def oldest(tables):
    return next(iter(tables.idle))


def newest(tables):
    return list(tables.idle)[-1]


def forget(tables, block):
    del tables.idle[block], tables.block_of[tables.key_of.pop(block)]


def evicting(choose=oldest, forget=forget, **methods):
    """A cache whose tables evict the block that choose(tables) names. methods: of the cache."""

    def evict(self):
        block = choose(self)
        forget(self, block)
        return block

    return cache_with(type("OwnTables", (SharedTables,), {"evict": evict}), **methods)


class Forgets(SharedTables):
    def give_back(self, table, block):
        super().give_back(table, block)
        if block in self.idle:
            forget(self, block)
            self._free[table].append(block)


class BlockAlone(PrefixCache):
    @staticmethod
    def block_key(before, token_ids):
        return tuple(token_ids[-1:])


class LosesSizes(PrefixCache):
    def __init__(self, model, *, num_blocks, block_size=64, **sizes):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size)
        self.tables = SharedOnce(num_blocks, block_size)


class SortsTheQueue(PrefixCache):
    """It evicts as the stage does; equal beginnings are next to each other in its queue."""

    def add(self, seq):
        super().add(seq)
        self.waiting = type(self.waiting)(sorted(self.waiting, key=lambda other: other.token_ids))


class SharedOnce(SharedTables):
    """Two classes of blocks: those that were ever shared are evicted when no other is left."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.was_shared = set()

    def share(self, seq_id, blocks):
        super().share(seq_id, blocks)
        self.was_shared.update(blocks)

    def evict(self):
        block = next((block for block in self.idle if block not in self.was_shared), next(iter(self.idle)))
        self.was_shared.discard(block)
        forget(self, block)
        return block


class CountsInTheClass(SharedOnce):
    """Shares what it knows of blocks with other pools, whose blocks hold other texts."""

    ever_shared: set[int] = set()

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.was_shared = self.ever_shared


class NeverShared(SharedOnce):
    """Knows no block to evict when all that are idle were shared."""

    def evict(self):
        block = next(block for block in self.idle if block not in self.was_shared)
        forget(self, block)
        return block


# With one sequence at a time these are right.


class IdleAtTheFirstDrop(SharedOnce):
    def give_back(self, table, block):
        super().give_back(table, block)
        if block in self.key_of:
            self.idle[block] = None


class OneHolder(SharedOnce):
    def share(self, seq_id, blocks):
        super().share(seq_id, blocks)
        for block in blocks:
            self.ref_counts[block] = 1


test_wrong_policies = wrong_answers(
    "15.4",
    {
        "nothing kept": (cache_with(Forgets), "fewer than the"),
        "a key that lies": (BlockAlone, "Was a block with another text found for it?"),
        "idle at the first drop": (
            cache_with(IdleAtTheFirstDrop),
            "the promise **Shared beginnings** (a block is free when no sequence holds it) is broken: block 0 is free",
        ),
        "no subclass": (TokenBudget, "expected a subclass of PrefixCache"),
        "the stage itself": (type("OwnCache", (PrefixCache,), {"extra": 1}), "does it evict in another order?"),
        "a key that stays": (
            evicting(forget=lambda t, block: t.idle.pop(block)),
            "An evicted block must not be found any more",
        ),
        "the newest, with a count that boasts": (
            evicting(newest, num_found_tokens=property(lambda self: 10**6, lambda self, n: None)),
            "fewer than the",
        ),
        "a record in the class": (cache_with(CountsInTheClass), "by a second stage of the class"),
        "no block that was shared": (
            cache_with(NeverShared),
            "StopIteration",
        ),
        "a queue that is sorted": (SortsTheQueue, "does it evict in another order?"),
        "one holder": (cache_with(OneHolder), "the promise **Shared beginnings**"),
        "sizes that are lost": (LosesSizes, "made with max_num_seqs=1, the stage has 64: pass all sizes on"),
    },
)


class SecondChance(SharedTables):
    """An entry that was shared goes to the end of the line once, and loses its mark."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.marked = set()

    def share(self, seq_id, blocks):
        super().share(seq_id, blocks)
        self.marked.update(blocks)

    def evict(self):
        while (block := next(iter(self.idle))) in self.marked:
            self.marked.remove(block)
            self.idle[block] = self.idle.pop(block)
        return super().evict()


# At night: the notebook's solution is judged in every run.
test_right_policies = pytest.mark.nightly(
    right_answers(
        "15.4",
        {
            "shared or not": cache_with(SharedOnce),
            "a second chance": cache_with(SecondChance),
        },
    )
)
