"""Lesson 15, eviction and a policy of one's own: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers

from roseinfer.teach.exercises.lesson15 import REPLAY_MISTAKES, Pool
from stages import PrefixCache, TokenBudget
from stages.s15_prefix_cache import SharedTables


def played(pool_class=Pool):
    def replay(events, num_blocks):
        pool = pool_class(num_blocks).play(events)
        return pool.hits, pool.evicted

    return replay


class Empties(Pool):
    def drop(self, text):
        super().drop(text)
        if text in self.idle:
            self.idle.remove(text)
            del self.refs[text]


class TwoHolders(Pool):
    def hold(self, text):
        super().hold(text)
        self.refs[text] = min(2, self.refs[text])


def mistaken(part):
    """The answer that makes one of the mistakes which the checker knows, found by a part of its name."""
    [methods] = [methods for why, methods in REPLAY_MISTAKES.items() if part in why]
    return played(type("Mistaken", (Pool,), methods)), part


@wrong_answers(
    "15.3",
    {
        "idle ones alone": mistaken("a text that others hold is a hit"),
        "held ones alone": mistaken("an idle text is a hit"),
        "empty when given back": (played(Empties), "who gives a block back does not empty it"),
        "the first drop": mistaken("when its last holder has given it back"),
        "the newest": mistaken("not the one that became idle last"),
        "first in, first out": mistaken("not when the text first came into the pool"),
        "least recently asked for": mistaken("it may have been held for long"),
        "idle though held": mistaken("a text that is held again is idle no more"),
        "too early": mistaken("as long as a block is free"),
        "who is held": mistaken("a block that is held cannot be evicted"),
        "the smallest": mistaken("not the smallest number"),
        "hits alone": (lambda *case: played()(*case)[0], "expected (hits, evicted)"),
        "a count of evictions": (lambda *case: (played()(*case)[0], len(played()(*case)[1])), "evicted: "),
        "two holders at most": (played(TwoHolders), "expected"),
        "six texts": (lambda events, n: played()([(what, text % 6) for what, text in events], n), "hits: you return"),
        "misses": (lambda *case: (len(case[0]) - played()(*case)[0], played()(*case)[1]), "hits: you return"),
    },
)
def test_wrong_evictions(answer, message):
    assert_refused("15.3", answer, message)


def by_clock(events, num_blocks):
    """Without an order of idle texts: each remembers when it was given back."""
    holders, since, hits, evicted = {}, {}, 0, []
    for now, (what, text) in enumerate(events):
        if what == "drop":
            holders[text] -= 1
            since[text] = now
            continue
        if text in holders:
            hits += 1
        elif len(holders) == num_blocks:
            victim = min((other for other, n in holders.items() if n == 0), key=since.__getitem__)
            evicted.append(victim)
            del holders[victim]
        holders[text] = holders.get(text, 0) + 1
    return [hits, evicted]


def by_ordered_dict(events, num_blocks):
    held, idle, hits, evicted = Counter(), OrderedDict(), 0, []
    for what, text in events:
        if what == "drop":
            held[text] -= 1
            if held[text] == 0:
                idle[text] = None
            continue
        hits += held[text] > 0 or text in idle
        if not (held[text] or text in idle) and len(idle) + sum(n > 0 for n in held.values()) == num_blocks:
            evicted.append(idle.popitem(last=False)[0])
        idle.pop(text, None)
        held[text] += 1
    return hits, tuple(evicted)


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


@right_answers("15.3", {"by a clock": by_clock, "an ordered dict": by_ordered_dict, "slots": by_slots})
def test_right_evictions(answer):
    assert_accepted("15.3", answer)


# 15.4


def cache_with(tables_class, **methods):
    class OwnCache(PrefixCache):
        def __init__(self, model, *, num_blocks, block_size=64, **sizes):
            super().__init__(model, num_blocks=num_blocks, block_size=block_size, **sizes)
            self.tables = tables_class(num_blocks, block_size)

    for name, method in methods.items():
        setattr(OwnCache, name, method)
    return OwnCache


def evicting(choose, **methods):
    """A cache whose tables evict the block that choose(tables) names."""

    def evict(self):
        block = choose(self)
        del self.idle[block], self.block_of[self.key_of.pop(block)]
        return block

    return cache_with(type("OwnTables", (SharedTables,), {"evict": evict} | methods))


class KeepsTheKey(SharedTables):
    def evict(self):
        block = next(iter(self.idle))
        del self.idle[block]
        return block


class KeepsHalfTheKey(SharedTables):
    def evict(self):
        block = next(iter(self.idle))
        del self.idle[block], self.key_of[block]
        return block


class StaysIdle(SharedTables):
    def evict(self):
        block = next(iter(self.idle))
        del self.block_of[self.key_of.pop(block)]
        return block


class LosesOne(SharedTables):
    def evict(self):
        super().evict()
        return super().evict()


class Held(SharedTables):
    def evict(self):
        return next((block for block, n in enumerate(self.ref_counts) if n), None) or super().evict()


class Forgets(SharedTables):
    def give_back(self, table, block):
        super().give_back(table, block)
        if block in self.idle:
            del self.idle[block], self.block_of[self.key_of.pop(block)]
            self._free[table].append(block)


class KeepsIdleToItself(SharedTables):
    def give_back(self, table, block):
        super().give_back(table, block)
        self.ref_counts[block] = max(1, self.ref_counts[block])


class BlockAlone(PrefixCache):
    @staticmethod
    def block_key(before, token_ids):
        return tuple(token_ids[-1:])


class SmallerPool(PrefixCache):
    def __init__(self, model, *, num_blocks, block_size=64, **sizes):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, **sizes)
        self.tables = SharedTables(num_blocks - 1, block_size)


class LargerPool(PrefixCache):
    def __init__(self, model, *, num_blocks, **sizes):
        super().__init__(model, num_blocks=2 * num_blocks, **sizes)


class Boasts(PrefixCache):
    """It evicts as the stage does, and counts more."""

    def admit(self, seq):
        joins = super().admit(seq)
        self.num_found_tokens += joins
        return joins


class NewestFirst(SharedTables):
    def evict(self):
        block = list(self.idle)[-1]
        del self.idle[block], self.block_of[self.key_of.pop(block)]
        return block


class KeepsForEver(SharedTables):
    """Evicts no block that was ever shared, not even where all were."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.was_shared = set()

    def share(self, seq_id, blocks):
        super().share(seq_id, blocks)
        self.was_shared.update(blocks)

    def evict(self):
        block = next(block for block in self.idle if block not in self.was_shared)
        del self.idle[block], self.block_of[self.key_of.pop(block)]
        return block


@wrong_answers(
    "15.4",
    {
        "no subclass": (TokenBudget, "expected a subclass of PrefixCache"),
        "a function": (lambda model: None, "expected a subclass of a stage"),
        "the stage itself": (type("OwnCache", (PrefixCache,), {"extra": 1}), "does it evict in another order?"),
        "the newest": (evicting(lambda t: list(t.idle)[-1]), "fewer than the"),
        "the smallest block": (evicting(lambda t: min(t.idle)), "fewer than the"),
        "nothing kept": (cache_with(Forgets), "fewer than the"),
        "a key that stays": (cache_with(KeepsTheKey), "Who is evicted must not be found any more"),
        "half a key": (cache_with(KeepsHalfTheKey), "block_of and key_of do not agree"),
        "idle for ever": (cache_with(StaysIdle), "raised KeyError"),
        "two at a time": (cache_with(LosesOne), "is lost: neither free, nor idle, nor held"),
        "who is held": (cache_with(Held), "ref_counts[27] is 1, and 8 sequences hold the block"),
        "holders that stay": (cache_with(KeepsIdleToItself), "sequences hold the block"),
        "a key that lies": (BlockAlone, "found a block with another text?"),
        "a count that boasts": (Boasts, "does it evict in another order?"),
        "the newest, with a count that boasts": (
            cache_with(NewestFirst, num_found_tokens=property(lambda self: 10**6, lambda self, n: None)),
            "fewer than the",
        ),
        "found once, kept for ever": (cache_with(KeepsForEver), "StopIteration"),
        "a larger pool": (LargerPool, "self.tables has 60 blocks"),
        "a smaller pool": (SmallerPool, "self.tables has 29 blocks"),
    },
)
def test_wrong_policies(answer, message):
    assert_refused("15.4", answer, message)


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
        self.idle.pop(block)
        self.block_of.pop(self.key_of.pop(block))
        return block


class SecondChance(SharedTables):
    """Whoever was shared goes to the end of the line once, and loses its mark."""

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


class ByKey(SharedTables):
    """Counts by key, so that what was evicted and comes again is known."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.times = Counter()

    def put(self, key, block):
        super().put(key, block)
        self.times[key] += 1

    def evict(self):
        block = min(self.idle, key=lambda block: self.times[self.key_of[block]])
        self.idle[next(iter(self.idle))] = None
        del self.idle[block], self.block_of[self.key_of.pop(block)]
        return block


@right_answers(
    "15.4",
    {
        "shared or not": cache_with(SharedOnce),
        "no count at all": cache_with(SharedOnce, num_found_tokens=property(lambda self: 0, lambda self, n: None)),
        "a second chance": cache_with(SecondChance),
        "by key": cache_with(ByKey),
    },
)
def test_right_policies(answer):
    assert_accepted("15.4", answer)


def test_the_mistakes_that_the_checker_names_are_mistakes():
    for methods in REPLAY_MISTAKES.values():
        with pytest.raises(AssertionError):
            assert_accepted("15.3", played(type("Mistaken", (Pool,), methods)))
