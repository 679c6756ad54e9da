"""Eviction: what is found is what a simple model of the cache finds, and no entry stays that nothing can reach."""

from __future__ import annotations

import pytest
from draws import draws
from hypothesis import example, given
from hypothesis import strategies as st

from roseinfer.engine.prefix_cache import Entry, PrefixCache
from roseinfer.sequence import Sequence

Text = tuple[int, ...]
# The block of (0, 0) leaves with (0,), while a sequence holds it, and the same text gets another block.
RECOMPUTED = [
    ((0,), "run"),
    ((0,), "hold alone"),
    ((0, 0), "hold alone"),
    ((0,), "evict"),
    ((0, 0), "hold"),
    ((0,), "release"),
]
texts = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)


class Model:
    """Texts that can be found, a block for each: held so many times, or idle since some moment."""

    def __init__(self) -> None:
        self.holders: dict[Text, int] = {}
        self.idle: list[Text] = []  # the longest idle first

    def found(self, text: Text) -> int:
        return next(i for i in range(len(text) + 1) if i == len(text) or text[: i + 1] not in self.holders)

    def release(self, text: Text) -> None:
        self.holders[text] -= 1
        if not self.holders[text]:
            self.idle.append(text)

    def evict(self) -> None:
        """The longest idle that no other text goes on from; where there is none, all that go on from it go, too."""

        def later(text: Text) -> list[Text]:
            return [other for other in self.holders if other[: len(text)] == text and other != text]

        ends = [text for text in self.idle if not later(text)]
        last = [text for text in self.idle if not any(other in self.idle for other in later(text))]
        gone = (ends or last)[0]
        self.idle.remove(gone)
        for text in [gone, *later(gone)]:
            del self.holders[text]


class Cache:
    """A PrefixCache with blocks of one token, used as BlockManager does."""

    def __init__(self) -> None:
        self.cache, self.next_block = PrefixCache(1), 0
        self.holders: dict[int, int] = {}

    def compute(self, text: Text, alone: bool) -> list[int]:
        """The blocks of a sequence that holds them. alone: it began before others had computed anything."""
        seq = Sequence([*text])
        chain: list[Entry | None] = [] if alone else [*self.cache.find(seq)]
        blocks = [entry.block for entry in chain]
        for i in range(len(chain), len(text)):
            blocks.append(self.next_block)
            self.next_block += 1
            if i == len(chain) and (entry := self.cache.put(seq, i, blocks[-1], chain[-1] if chain else None)):
                chain.append(entry)
        for block in blocks:
            self.cache.idle.pop(block, None)
            self.holders[block] = self.holders.get(block, 0) + 1
        return blocks

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block] and block in self.cache.of_block:
                self.cache.idle[block] = None


@pytest.mark.slow
@example(RECOMPUTED)
@draws(120)
@given(st.lists(st.tuples(texts, st.sampled_from(["run", "run alone", "hold", "hold alone", "release", "evict"]))))
def test_what_is_found_is_what_a_model_finds(operations):
    real, model = Cache(), Model()
    held: list[tuple[list[int], list[tuple[Text, int]]]] = []

    def let_go(blocks: list[int], own: list[tuple[Text, int]]) -> None:
        real.release(blocks)
        for part, block in own:
            if block in real.cache.of_block:
                model.release(part)

    for text, what in operations:
        if what == "evict":
            if real.cache.idle:
                assert real.cache.evict() not in real.cache.of_block
                model.evict()
        elif what == "release":
            if held:
                let_go(*held.pop(len(text) % len(held)))
        else:
            blocks = real.compute(text, "alone" in what)
            parts = [text[: i + 1] for i in range(len(text))]
            # Of a text that was there already, a sequence that computed it alone holds a block that is not found.
            own = [(p, b) for p, b in zip(parts, blocks, strict=True) if b in real.cache.of_block]
            for part, _ in own:
                model.holders[part] = model.holders.get(part, 0) + 1
                if part in model.idle:
                    model.idle.remove(part)
            own.reverse()
            held.append((blocks, own))
            if "run" in what:
                let_go(*held.pop())
        real.cache.check()
        assert len(real.cache.idle) == len(model.idle)
        for other in [text, *model.holders]:
            assert len(real.cache.find(Sequence([*other]))) == model.found(other)


def test_a_block_that_another_goes_on_from_is_evicted_after_it():
    """Two sequences compute the first block at once, and only the second one's next block is kept."""
    cache = Cache()
    first = cache.compute((1,), alone=True)
    second = cache.compute((1, 2), alone=True)
    cache.release(first)
    cache.release(second)
    cache.release(cache.compute((5,), alone=True))
    assert cache.cache.evict() == second[1], "the first one has been idle for longer, and the other goes on from it"
    assert len(cache.cache.find(Sequence([1, 2]))) == 1
    cache.release(cache.compute((1, 2), alone=False))
    assert len(cache.cache.find(Sequence([1, 2]))) == 2


def test_where_only_held_blocks_go_on_they_are_forgotten_and_may_come_again():
    cache = Cache()
    first, second = cache.compute((1,), alone=True), cache.compute((1, 2), alone=True)
    cache.release(first)
    assert cache.cache.evict() == first[0] and not cache.cache.entries
    cache.cache.check()
    cache.release(cache.compute((1, 2), alone=False))
    assert len(cache.cache.find(Sequence([1, 2]))) == 2
    cache.release(second)
    cache.cache.check()
