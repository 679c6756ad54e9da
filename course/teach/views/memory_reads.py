"""Reads of one decode step over the keys of one layer, cache line by cache line, in four layouts of memory."""

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
    """Reads that belong together. rows: places in memory, in units of a key, each with whether its key is used."""

    name: str
    rows: list[tuple[int, bool]]


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


def padded_gather(batch: Batch) -> Layout:
    """Lay out the batch that a gather has copied: attention reads each sequence to the end of the longest one."""
    longest, heads = max(batch.lengths), batch.num_kv_heads
    keys: list[Key] = []
    tasks = []
    for seq, length in enumerate(batch.lengths):
        for head in range(heads):
            first = len(keys)
            keys += [Key(seq, head, token if token < length else None) for token in range(longest)]
            rows = [(first + token, token < length) for token in range(longest)]
            tasks.append(Task(_of(seq, head), rows))
    return Layout("padded gather", [len(batch.lengths), heads, longest, batch.head_dim], keys, tasks)


def block_walk(batch: Batch) -> Layout:
    """Lay out stage 05's reads: whole blocks, column by column of the table; a finished sequence reads block 0."""
    pool, size = token_major(batch), batch.block_size * batch.num_kv_heads
    tasks = []
    for column in range(max(map(len, batch.tables))):
        for seq, table in enumerate(batch.tables):
            is_over = column >= len(table)
            block = 0 if is_over else table[column]
            places = range(block * size, (block + 1) * size)
            rows = [(place, not is_over and pool.keys[place].token is not None) for place in places]
            tasks.append(Task(f"column {column}, sequence {seq}: block {block}", rows))
    return pool._replace(name="block walk", tasks=tasks)


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
            places = (table[token // slots] * size + place_of(token % slots, head) for token in range(length))
            tasks.append(Task(_of(seq, head), [(place, True) for place in places]))
    inner = [slots, heads] if name == "token-major" else [heads, slots]
    return Layout(name, [len(batch.owners), *inner, batch.head_dim], [keys[place] for place in sorted(keys)], tasks)


def _of(seq: int, head: int) -> str:
    return f"sequence {seq}, head {head}"


def reads_of(layout: Layout, row_bytes: int) -> Iterator[Read]:
    """Yield the reads of a layout: each task reads each of its cache lines once, in the order in which it meets them.

    Tasks share no reads: they may run on different cores, or long after each other.
    """
    last = None
    for task in layout.tasks:
        used: dict[int, dict[int, int]] = {}  # of each line, the bytes of each place
        for place, is_used in task.rows:
            first, end = place * row_bytes, (place + 1) * row_bytes
            for line in range(first // LINE, (end - 1) // LINE + 1):
                inside = min(end, (line + 1) * LINE) - max(first, line * LINE)
                used.setdefault(line, {}).update({place: inside} if is_used else {})
        for line, places in used.items():
            is_jump = last is not None and line not in (last, last + 1)
            yield Read(task.name, line, sum(places.values()), list(places), is_jump)
            last = line


def count(reads: Sequence[Read]) -> Counts:
    used = sum(read.used for read in reads)
    lines = len({read.line for read in reads})
    return Counts(used, len(reads) * LINE - used, len(reads), lines, sum(read.jump for read in reads))


LAYOUTS: Mapping[str, Callable[[Batch], Layout]] = {
    "padded gather": padded_gather,
    "block walk": block_walk,
    "token-major": token_major,
    "head-major": head_major,
}
