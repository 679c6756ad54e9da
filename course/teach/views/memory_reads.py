"""Reads of one decode step over the keys of one layer, cache line by cache line, in two layouts of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Batch:
    """Batch of sequences with `lengths` cached tokens. tables: the blocks of each one, given out as sequences grow."""

    lengths: Sequence[int]
    num_kv_heads: int
    block_size: int
    head_dim: int
    bytes_per_value: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one key: what one KV head keeps of one token."""
        return self.head_dim * self.bytes_per_value

    @property
    def tables(self) -> list[list[int]]:
        tables: list[list[int]] = [[] for _ in self.lengths]
        for column in range(-(-max(self.lengths) // self.block_size)):
            for table, length in zip(tables, self.lengths, strict=True):
                if column * self.block_size < length:
                    table.append(sum(map(len, tables)))
        return tables

    @property
    def owners(self) -> dict[int, tuple[int, int]]:
        """The sequence of each block, and the block's column in its table."""
        return {block: (seq, column) for seq, row in enumerate(self.tables) for column, block in enumerate(row)}


class Key(NamedTuple):
    """Key at its place in memory. token: the position in its sequence, None for a place without a cached token."""

    seq: int
    head: int
    token: int | None


class Task(NamedTuple):
    """Reads that belong together. places: of its keys in memory, in units of a key."""

    name: str
    places: list[int]


class Read(NamedTuple):
    """One read of a cache line. used: how many of its bytes its task uses, of the keys at `places`.

    jump: whether it is another line than the last one or the one after it.
    """

    task: str
    line: int
    used: int
    places: list[int]
    jump: bool


class Layout(NamedTuple):
    """Layout of keys in memory. shape: of the tensor. keys: at all places, in order. tasks: what reads it, in order."""

    name: str
    shape: list[int]
    keys: list[Key]
    tasks: list[Task]


class Counts(NamedTuple):
    used: int
    not_used: int
    reads: int
    lines: int
    jumps: int


def token_major(batch: Batch) -> Layout:
    """Lay out the pool of stages 05 to 09: the keys of a token lie side by side.

    A task reads one KV head of one sequence.
    """
    return _pool(batch, "token-major", lambda slot, head: slot * batch.num_kv_heads + head)


def head_major(batch: Batch) -> Layout:
    """Lay out the pool from stage 10 on: in a block, the keys of a KV head lie side by side."""
    return _pool(batch, "head-major", lambda slot, head: head * batch.block_size + slot)


def _pool(batch: Batch, name: str, place_of: Callable[[int, int], int]) -> Layout:
    heads, slots = batch.num_kv_heads, batch.block_size
    size = heads * slots
    keys: dict[int, Key] = {}
    for block, (seq, column) in batch.owners.items():
        for slot in range(slots):
            token = column * slots + slot
            for head in range(heads):
                is_cached = token < batch.lengths[seq]
                keys[block * size + place_of(slot, head)] = Key(seq, head, token if is_cached else None)
    tasks = []
    for seq, (table, length) in enumerate(zip(batch.tables, batch.lengths, strict=True)):
        for head in range(heads):
            places = [table[token // slots] * size + place_of(token % slots, head) for token in range(length)]
            tasks.append(Task(f"sequence {seq}, head {head}", places))
    inner = [slots, heads] if name == "token-major" else [heads, slots]
    return Layout(name, [len(batch.owners), *inner, batch.head_dim], [keys[place] for place in sorted(keys)], tasks)


def reads_of(layout: Layout, row_bytes: int) -> Iterator[Read]:
    """Yield the reads of a layout: each task reads each of its cache lines once, in the order in which it meets them.

    Tasks share no reads: they may run on different cores, or long after each other.
    """
    last = None
    for task in layout.tasks:
        used: dict[int, dict[int, int]] = {}  # of each line, the bytes of each place
        for place in task.places:
            first, end = place * row_bytes, (place + 1) * row_bytes
            for line in range(first // LINE, (end - 1) // LINE + 1):
                inside = min(end, (line + 1) * LINE) - max(first, line * LINE)
                used.setdefault(line, {})[place] = inside
        for line, places in used.items():
            is_jump = last is not None and line not in (last, last + 1)
            yield Read(task.name, line, sum(places.values()), list(places), is_jump)
            last = line


def count(reads: Sequence[Read]) -> Counts:
    used = sum(read.used for read in reads)
    lines = len({read.line for read in reads})
    return Counts(used, len(reads) * LINE - used, len(reads), lines, sum(read.jump for read in reads))


LAYOUTS: Mapping[str, Callable[[Batch], Layout]] = {
    "token-major": token_major,
    "head-major": head_major,
}
