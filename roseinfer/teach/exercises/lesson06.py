"""Checkers of lesson 06: rows at an edge, a search that finds unsound keys, and a step that builds nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from math import prod
from random import Random
from typing import Any

from roseinfer.bench.table_steps import TableBatch
from roseinfer.contract.broken_promises import count
from roseinfer.models import Model
from roseinfer.profiling import count_ops
from roseinfer.stage import Stage

from .contract_check import require_contract
from .drawn import Expected, compare, draw, require_all
from .exercise import Wrong, exercise
from .explain import explain_counts
from .stage_checks import require_tokens
from .table_schedules import SCHEDULES, describe_schedule, play, require_tables

Blocks = list[int]


@exercise(
    "06.1",
    title="Rows that a step builds",
    minutes=5,
    difficulty=1,
    importance=3,
    stub="def rows_built(num_layers, lengths, block_size): ...",
    task="How many rows does one decode step of stage 06 build? `lengths` are the cached tokens of its sequences "
    "before the step; all of them were decoded on the step before too, so their rows are kept.",
    hints=(
        "The step caches one more token a sequence. For which lengths is there no slot left for it?",
        "A sequence of n cached tokens takes a new block when n is a multiple of block_size.",
        "Each sequence that does costs a row in every layer.",
    ),
)
def rows_of_a_step(answer: Callable[[int, list[int], int], int]) -> None:
    compare(
        answer,
        STEPS,
        Expected(lambda num_layers, lengths, size: num_layers * sum(n % size == 0 for n in lengths), ROW_MISTAKES),
        lambda num_layers, lengths, size: f"{count(num_layers, 'layer')}, lengths {_shown(lengths)}, blocks of {size}",
    )


def _draw_step(rng: Random) -> tuple[int, list[int], int]:
    size = rng.choice((1, 3, 4, 6, 10, 16, 64))
    edges = (size, size + 1, 2 * size - 1, 2 * size, 3 * size)
    return rng.randint(1, 12), [rng.choice((*edges, rng.randint(2, 9))) for _ in range(rng.randint(1, 8))], size


# (layers, cached tokens of each sequence, block size)
STEPS = [
    (4, [10, 100], 64),
    (4, [63, 64, 65], 64),
    (3, [15, 16, 31, 32, 47], 16),
    (12, [64] * 64, 64),
    (2, [8, 6], 4),
    (2, [4, 9], 6),
    *draw(_draw_step),
]
ROW_MISTAKES = {
    "that is every row; those whose blocks have not changed are kept": lambda num_layers, lengths, size: (
        num_layers * len(lengths)
    ),
    "a block with one slot left still takes the new token": lambda num_layers, lengths, size: (
        num_layers * sum((n + 1) % size == 0 for n in lengths)
    ),
    "those are sequences; each of them has a row in every layer": lambda num_layers, lengths, size: sum(
        n % size == 0 for n in lengths
    ),
    "every sequence that needs a block has rows built, not one for all": lambda num_layers, lengths, size: (
        num_layers * any(n % size == 0 for n in lengths)
    ),
    "a block may have a size that is no power of two": lambda num_layers, lengths, size: (
        num_layers * sum(n & (size - 1) == 0 for n in lengths)
    ),
}


def _shown(lengths: list[int]) -> str:
    return f"{len(lengths)} times {lengths[0]}" if len(lengths) > 8 else str(lengths)


class RowCache:
    """One sequence's table row, kept until key(blocks) is another than it was."""

    def __init__(self, key: Callable[[Blocks], Any]) -> None:
        self._key = key
        self._kept: tuple[Any, Blocks] | None = None

    def row(self, blocks: Blocks) -> Blocks:
        key = self._key(blocks)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, list(blocks)
        return list(self._kept[1])


MOST_BLOCKS, IDS = 3, range(5)
BLOCK_LISTS = [list(blocks) for n in range(1, MOST_BLOCKS + 1) for blocks in permutations(IDS, n)]
NOT_RARE = 0.01  # of all pairs give a wrong row: what a search that draws its pairs will meet

Key = Callable[[Blocks], Any]
PARTS: dict[str, Key] = {
    "the length": len,
    "the first id": lambda blocks: blocks[0],
    "the last id": lambda blocks: blocks[-1],
    "the first two ids": lambda blocks: blocks[:2],
    "the last two ids": lambda blocks: blocks[-2:],
    "every second id": lambda blocks: blocks[::2],
    "the smallest id": min,
    "the largest id": max,
    "the sum of the ids": sum,
    "the product of the ids": prod,
    "the set of ids": set,
    "the ids modulo 4": lambda blocks: [block % 4 for block in blocks],
    "the ids as the digits of a number": lambda blocks: int("".join(map(str, blocks))),
    "all ids": tuple,
}


def wrong_pairs(key: Key) -> list[tuple[Blocks, Blocks]]:
    """All pairs that a cache with this key gives a wrong row for; none, when the key is sound."""
    made = [(blocks, key(blocks)) for blocks in BLOCK_LISTS]
    return [(one, other) for one, a in made for other, b in made if a == b and one != other]


def _keys() -> dict[str, Key]:
    """Every part alone, the post's key, also with the first id, and parts taken together: 40 unsound, 5 sound."""
    keys = dict(PARTS)
    keys["(length, last id), the post's"] = lambda blocks: (len(blocks), blocks[-1])
    keys["the ids modulo 5"] = lambda blocks: [block % 5 for block in blocks]  # sound, as long as no id is 5
    keys["(length, first id, last id)"] = lambda blocks: (len(blocks), blocks[0], blocks[-1])
    together: dict[str, Key] = {
        f"{one} and {other}": lambda blocks, first=first, second=second: (first(blocks), second(blocks))
        for (one, first), (other, second) in combinations(PARTS.items(), 2)
    }
    wrong = {name: len(wrong_pairs(key)) / len(BLOCK_LISTS) ** 2 for name, key in together.items()}
    rng = Random(0)
    for number, among in ((40, [n for n in wrong if wrong[n] > NOT_RARE]), (4, [n for n in wrong if not wrong[n]])):
        keys |= {name: together[name] for name in sorted(rng.sample(among, number))}
    return keys


KEYS = _keys()


@exercise(
    "06.2",
    title="A search that finds an unsound key",
    minutes=15,
    difficulty=3,
    importance=4,
    stub="def find_wrong_row(new_cache): ...",
    task="`new_cache()` makes a cache of one sequence's row: `cache.row(blocks)` returns the row of that list of "
    "block ids, or the one it kept when its key says that nothing has changed. Return two block lists "
    "`(first, second)` for which `row(first)` and then `row(second)` gives a wrong row, or None when there are none. "
    f"A block list has 1 to {MOST_BLOCKS} **different** ids from {IDS.start} to {IDS.stop - 1}. Your search is tried "
    "on several keys, sound ones among them.",
    hints=(
        "hypothesis.find can do it, as in the lesson. Or count how many block lists there are: few enough to try all.",
        "itertools.permutations(range(5), n) gives every list of n different ids.",
        "For each first, for each second: take a new cache, ask for both rows, compare the second one with second.",
    ),
)
def unsound_key(answer: Callable[[Callable[[], RowCache]], tuple[Blocks, Blocks] | None]) -> None:
    def judge(name: str) -> None:
        found, pairs = answer(lambda: RowCache(KEYS[name])), wrong_pairs(KEYS[name])
        if found is not None:
            _require_wrong_row(KEYS[name], found)
        elif pairs:
            first, second = pairs[0]
            raise Wrong(f"you found no pair, but row({first}) and then row({second}) is one")

    require_all([(name,) for name in KEYS], judge, lambda name: f"key = {name}")


def _require_wrong_row(key: Key, found: object) -> None:
    """Raises Wrong unless `found` is a pair of block lists for which a cache with this key gives a wrong row."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise Wrong(f"expected a pair of block lists or None, got {found!r}")
    first, second = (list(blocks) if isinstance(blocks, (list, tuple)) else blocks for blocks in found)
    for blocks in (first, second):
        if not isinstance(blocks, list) or not 1 <= len(blocks) <= MOST_BLOCKS or not set(blocks) <= set(IDS):
            raise Wrong(f"{blocks!r} is no list of 1 to {MOST_BLOCKS} ids from {IDS.start} to {IDS.stop - 1}")
        if len(set(blocks)) != len(blocks):
            raise Wrong(f"{blocks} names a block twice; a sequence holds a block once")
    cache = RowCache(key)
    cache.row(first)
    if cache.row(second) == second:
        tuples = "; row gives a list, which no tuple is equal to" if isinstance(found[1], tuple) else ""
        raise Wrong(f"after row({first}), row({second}) is {second}, and that is right{tuples}")


@exercise(
    "06.3",
    title="Build nothing when nothing has changed",
    minutes=25,
    difficulty=3,
    importance=3,
    stub="class OnlyWhenChanged(BlockTableCache): ...",
    task="On most steps the buffer already holds the right tables: the batch is the one of the step before, and no row "
    "has changed. Subclass `BlockTableCache` so that such a step builds no row and makes **no stack**. Tables must be "
    "right whatever comes and goes: other orders, other batches, sequences freed and prefilled again, a step repeated "
    "after an error. `out` always "
    "is the front of the stage's own buffer, which only `build_block_tables` writes.",
    hints=(
        "Override build_block_tables. What did the buffer hold after the last call? Remember that, and compare.",
        "The rows are right if each place of the batch has the same sequence with the same version as before.",
        "[self.tables.version(seq.seq_id) for seq in seqs] says it all: a version is never used twice.",
    ),
)
def nothing_changed(answer: type[Stage], model: Model) -> None:
    if not (isinstance(answer, type) and issubclass(answer, Stage) and hasattr(answer, "build_block_tables")):
        raise Wrong(f"expected a subclass of BlockTableCache, got {answer!r}")
    require_tables(answer, model)
    require_all(SCHEDULES, lambda *calls: play(answer, model, calls), describe_schedule)
    require_tokens(answer, model)
    _require_idle(answer, model)
    _require_kept_rows(answer, model)
    require_contract(answer)


def _require_idle(answer: type[Stage], model: Model) -> None:
    """Raises Wrong when a step on which nothing changes builds a row or writes the buffer."""
    batch = TableBatch(answer, model, num_seqs=4, room=64)
    batch.admit([5] * 4)
    batch.step()
    if rows := batch.count_rows():
        raise Wrong(f"the tables are right, but a step on which nothing changes builds {rows} rows, the budget is 0")
    budget = dict.fromkeys(("aten::stack", "aten::cat", "aten::copy_"), 0)
    if message := explain_counts(count_ops(batch.step), budget):
        raise Wrong(f"a step on which nothing changes: {message}")


def _require_kept_rows(answer: type[Stage], model: Model) -> None:
    """Raises Wrong when one sequence's new block makes the others' rows be built again."""
    batch = TableBatch(answer, model, num_seqs=3, room=128)
    batch.admit([5, 63, 7])
    batch.step()
    rows, budget = batch.count_rows(), model.config.num_layers
    if rows > budget:
        raise Wrong(f"one of 3 sequences takes a new block, and {rows} rows are built; the budget is {budget}")
