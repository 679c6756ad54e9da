"""Checkers of lesson 06: rows at an edge, a search that finds unsound keys, and a step that builds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from roseinfer.bench.table_steps import TableBatch
from roseinfer.models import Model
from roseinfer.profiling import count_ops
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .exercise import Wrong, exercise
from .explain import explain_counts, explain_number
from .stage_checks import require_tokens

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
    for num_layers, lengths, block_size in (
        (4, [10, 100], 64),
        (4, [63, 64, 65], 64),
        (3, [15, 16, 31, 32, 47], 16),
        (12, [64] * 64, 64),
    ):
        crossing = sum(n % block_size == 0 for n in lengths)
        last_slot = sum((n + 1) % block_size == 0 for n in lengths)
        mistakes = {
            num_layers * len(lengths): "that is every row; those whose blocks have not changed are kept",
            num_layers * last_slot: "a block with one slot left still takes the new token",
            crossing: "those are sequences; each of them has a row in every layer",
        }
        got = answer(num_layers, list(lengths), block_size)
        if message := explain_number(got, num_layers * crossing, mistakes=mistakes):
            shown = f"{len(lengths)} times {lengths[0]}" if len(set(lengths)) == 1 else lengths
            raise Wrong(f"{num_layers} layers, lengths {shown}, blocks of {block_size}: {message}")


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
UNSOUND: dict[str, Callable[[Blocks], Any]] = {
    "the length": len,
    "the last id": lambda blocks: blocks[-1],
    "(length, last id), the post's": lambda blocks: (len(blocks), blocks[-1]),
    "(length, first id, last id)": lambda blocks: (len(blocks), blocks[0], blocks[-1]),
    "the set of ids": frozenset,
    "the sum of the ids": sum,
    "the ids as the digits of a number": lambda blocks: int("".join(map(str, blocks))),
}
SOUND: dict[str, Callable[[Blocks], Any]] = {
    "all ids": tuple,
    "the length and the ids as the digits of a number": lambda blocks: (len(blocks), int("".join(map(str, blocks)))),
}


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
    for name, key in UNSOUND.items():
        found = answer(lambda key=key: RowCache(key))
        if found is None:
            raise Wrong(f"key = {name}: you found no pair, but there is one")
        _require_wrong_row(name, key, found)
    for name, key in SOUND.items():
        found = answer(lambda key=key: RowCache(key))
        if found is not None:
            _require_wrong_row(name, key, found)


def _require_wrong_row(name: str, key: Callable[[Blocks], Any], found: object) -> None:
    """Raises Wrong unless `found` is a pair of block lists for which a cache with this key gives a wrong row."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise Wrong(f"key = {name}: expected a pair of block lists or None, got {found!r}")
    first, second = (list(blocks) if isinstance(blocks, (list, tuple)) else blocks for blocks in found)
    for blocks in (first, second):
        if not isinstance(blocks, list) or not 1 <= len(blocks) <= MOST_BLOCKS or not set(blocks) <= set(IDS):
            raise Wrong(
                f"key = {name}: {blocks!r} is no list of 1 to {MOST_BLOCKS} ids from {IDS.start} to {IDS.stop - 1}"
            )
        if len(set(blocks)) != len(blocks):
            raise Wrong(f"key = {name}: {blocks} names a block twice; a sequence holds a block once")
    cache = RowCache(key)
    cache.row(first)
    if cache.row(second) == second:
        raise Wrong(f"key = {name}: after row({first}), row({second}) is {second}, and that is right")


@exercise(
    "06.3",
    title="Build nothing when nothing has changed",
    minutes=25,
    difficulty=3,
    importance=3,
    stub="class OnlyWhenChanged(BlockTableCache): ...",
    task="On most steps the buffer already holds the right tables: the batch is the one of the step before, and no row "
    "has changed. Subclass `BlockTableCache` so that such a step builds no row and makes **no stack**. Tables must be "
    "right whatever comes and goes: other orders, other batches, sequences freed and prefilled again. `out` always "
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
    _require_tables(answer, model)
    require_tokens(answer, model)
    _require_idle(answer, model)
    _require_kept_rows(answer, model)


def _require_tables(answer: type[Stage], model: Model) -> None:
    """Raises Wrong when a table is wrong after some change of the batch."""
    stage: Any = answer(model, num_blocks=16, block_size=8, max_num_seqs=4)
    a, b, c, d = (Sequence([0]) for _ in range(4))
    for seq, num_tokens in ((a, 14), (b, 3), (c, 4)):
        _hold(stage, seq, num_tokens)
    _step(stage, [a, b, c], "on the first step")
    _step(stage, [a, b, c], "on a step without a change")
    a.num_cached_tokens = 16
    _step(stage, [a, b, c], "when a sequence takes a new block (its list grows in place)")
    _step(stage, [c, a, b], "when the batch comes in another order")
    _step(stage, [c, a], "when a sequence is left out")
    _step(stage, [b], "when only one sequence is decoded")
    _step(stage, [c, a], "when the batch before last comes back")
    stage.free(a)
    _hold(stage, d, 17)
    _step(stage, [c, d], "when a new sequence takes a freed one's place and its blocks")

    # The lesson's ABACBA: `a` comes back with as many blocks, the same last one, and another first one.
    stage = answer(model, num_blocks=16, block_size=8, max_num_seqs=4)
    a, b, c = (Sequence([0]) for _ in range(3))
    _hold(stage, a, 14)
    _hold(stage, b, 3)
    _step(stage, [a], "on the first step")
    stage.free(a)
    _hold(stage, c, 3)
    stage.free(b)
    _hold(stage, a, 14)
    _step(stage, [a], "when a sequence was freed and prefilled again into other blocks")


def _hold(stage: Any, seq: Sequence, num_tokens: int) -> None:
    stage.tables.reserve({seq.seq_id: num_tokens})
    seq.num_cached_tokens = num_tokens


@torch.inference_mode()
def _step(stage: Any, seqs: list[Sequence], when: str) -> None:
    stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
    out = stage.tables_of(stage.host_buffer, seqs)
    stage.build_block_tables(seqs, out)
    for layer, table in enumerate(out.tolist()):
        for i, seq in enumerate(seqs):
            blocks = stage.tables.of(seq.seq_id, layer)
            if table[i] != stage.padded_row(blocks):
                got = table[i][: len(blocks)]
                raise Wrong(f"{when}, row {i} of layer {layer} begins {got}; the blocks are {blocks}")
    for seq in seqs:
        seq.num_cached_tokens += 1


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
