"""Checkers of lesson 06: rows at an edge, a search that finds unsound keys, and a step that builds nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from math import prod
from random import Random
from typing import Any

from roseinfer.bench.table_steps import TableBatch
from roseinfer.models import Model
from roseinfer.profiling import count_ops
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.stage_checks import require_stage, require_tokens
from ..exercises.table_schedules import SCHEDULES, describe_blocks, play
from ..exercises.wrong import Wrong

Blocks = list[int]


# 06.1


def _draw_step(rng: Random) -> tuple[int, list[int], int]:
    size = rng.choice((1, 3, 4, 6, 10, 16, 64))
    edges = (size, size + 1, 2 * size - 1, 2 * size, 3 * size)
    return rng.randint(1, 12), [rng.choice((*edges, rng.randint(2, 9))) for _ in range(rng.randint(1, 8))], size


EDGE = "n % block_size == 0"
ROW_MISTAKES = {
    "that is every row, but rows whose blocks have not changed are kept": {EDGE: "True"},
    "a block with one slot left still takes the new token": {EDGE: "(n + 1) % block_size == 0"},
    "those are sequences, and each of them has a row in every layer": {"num_layers * ": ""},
    "the step builds rows for every sequence that needs a block, not for one": {"sum(": "any("},
    "equally long sequences have rows of their own": {"in lengths": "in set(lengths)"},
    "a block size need not be a power of two": {EDGE: "n & (block_size - 1) == 0"},
}


register(
    "06.1", Comparison(draw(_draw_step), as_solved("06.1", ROW_MISTAKES), inputs("num_layers", "lengths", "block_size"))
)


# 06.2


class RowCache:
    """One sequence's table row, kept until key(blocks) changes."""

    def __init__(self, key: Callable[[Blocks], Any]) -> None:
        self._key = key
        self._kept: tuple[Any, Blocks] | None = None

    def row(self, blocks: Blocks) -> Blocks:
        key = self._key(blocks)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, list(blocks)
        return list(self._kept[1])


BLOCK_LISTS = [list(blocks) for n in (1, 2, 3) for blocks in permutations(range(5), n)]
NOT_RARE = 0.01  # of all pairs give a wrong row, so a search that draws pairs meets one

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
    """List all pairs for which a cache with this key gives a wrong row. The list is empty when the key is sound."""
    made = [(blocks, key(blocks)) for blocks in BLOCK_LISTS]
    return [(one, other) for one, a in made for other, b in made if a == b and one != other]


def _keys() -> dict[str, Key]:
    """Make the keys to try: each part alone, pairs of parts that are unsound, and keys made for this exercise."""
    together: dict[str, Callable[..., Any]] = {
        f"{one} and {other}": lambda blocks, first=first, second=second: (first(blocks), second(blocks))
        for (one, first), (other, second) in combinations(PARTS.items(), 2)
    }
    rare = NOT_RARE * len(BLOCK_LISTS) ** 2
    return (
        PARTS
        | {
            "(length, last id), the post's": lambda blocks: (len(blocks), blocks[-1]),
            "(length, first id, last id)": lambda blocks: (len(blocks), blocks[0], blocks[-1]),
            "the ids modulo 5": lambda blocks: [block % 5 for block in blocks],  # sound, as long as no id is 5
            "(first id, last two ids)": lambda blocks: (blocks[0], blocks[-2:]),  # sound for 3 ids
            "(every second id, all ids as a set)": lambda blocks: (blocks[::2], set(blocks)),  # sound, too
            **{name: key for name, key in together.items() if len(wrong_pairs(key)) > rare},
        }
    )


KEYS = _keys()


@exercise("06.2")
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
    """Raise Wrong unless `found` is a pair of block lists for which a cache with this key gives a wrong row."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise Wrong(f"you return {found!r}, expected a pair of block lists or None")
    first, second = (list(blocks) if isinstance(blocks, (list, tuple)) else blocks for blocks in found)
    for blocks in (first, second):
        if blocks not in BLOCK_LISTS:
            raise Wrong(f"you return {blocks!r}, expected a list of 1 to 3 different ids from 0 to 4")
    cache = RowCache(key)
    cache.row(first)
    if cache.row(second) == second:
        tuples = "; row returns a list, and a tuple never equals a list" if isinstance(found[1], tuple) else ""
        raise Wrong(f"after row({first}), row({second}) is {second}, which is right{tuples}")


# 06.3


@exercise("06.3")
def nothing_changed(answer: type[Stage], model: Model) -> None:
    require_stage(answer, "BlockTableCache", "build_block_tables")
    require_all(SCHEDULES, lambda *calls: play(answer, model, calls), describe_blocks)
    require_tokens(answer, model)
    _require_idle(answer, model)
    _require_kept_rows(answer, model)
    require_contract(answer)


def _require_idle(answer: type[Stage], model: Model) -> None:
    """Raise Wrong if a step in which nothing changes builds a row or writes the buffer."""
    batch = TableBatch(answer, model, num_seqs=4, room=64)
    batch.admit([5] * 4)
    batch.step()
    if rows := batch.count_rows():
        raise Wrong(f"the tables are right, but a step in which nothing changes builds {rows} rows, the budget is 0")
    ops = count_ops(batch.step)
    if made := [f"{ops[op]} {op}" for op in ("aten::stack", "aten::cat", "aten::copy_") if ops[op]]:
        raise Wrong(f"the tables are right, but a step in which nothing changes makes {', '.join(made)}; expected none")


def _require_kept_rows(answer: type[Stage], model: Model) -> None:
    """Raise Wrong if a new block of one sequence causes the rows of the others to be built again."""
    batch = TableBatch(answer, model, num_seqs=3, room=128)
    batch.admit([5, 63, 7])
    batch.step()
    rows, budget = batch.count_rows(), model.config.num_layers
    if rows > budget:
        raise Wrong(f"one of 3 sequences takes a new block, and {rows} rows are built; the budget is {budget}")
