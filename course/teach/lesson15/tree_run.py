"""record_tree: a run over a prefix cache, and after each step which blocks there are, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

from roseinfer.bench.workload import Work
from roseinfer.sequence import Sequence

from ..measure.request_run import Run, record_run

Text = tuple[int, ...]  # from the first token of a sequence to the last of a block


class Node(NamedTuple):
    """A block after a step.

    text: all tokens up to its end, as it will be when its sequence has ended. twin: the request whose own copy it is,
    where another block has the same text; None for the block itself. num_tokens: the tokens cached in it. holders: the
    requests that hold it. place_in_line: 1 for the next to be evicted, 0 for a held block. is_found: its key finds it.
    """

    text: Text
    twin: int | None
    block: int
    num_tokens: int
    holders: tuple[int, ...]
    place_in_line: int
    is_found: bool


@dataclass(frozen=True)
class TreeRun:
    """A recorded run and its blocks. run: from record_run. nodes, num_free: after each step, blocks and free ones."""

    run: Run
    block_size: int
    nodes: list[list[Node]]
    num_free: list[int]

    def evicted(self, step: int) -> list[int]:
        """List the blocks that were found after the step before, and whose text is not found after this one."""
        before = {(node.text, node.block) for node in self.nodes[step - 1] if node.is_found} if step else set()
        found = {(node.text, node.block) for node in self.nodes[step] if node.is_found}
        return sorted(block for _, block in before - found)


class _Books(NamedTuple):
    """Blocks and keys of one step, as the stage has them."""

    block_of: dict[bytes, int]
    idle: list[int]
    held: dict[int, tuple[list[int], int]]  # by seq_id: blocks, cached tokens
    num_free: int


def record_tree(stage: Any, work: Work) -> TreeRun:
    """Run `work` on a PrefixCache as record_run does by the clock of steps, and record its blocks after each step.

    Raises ValueError for a stage without a prefix cache, and as record_run.
    """
    tables: Any = getattr(stage, "tables", None)
    if not all(hasattr(tables, name) for name in ("block_of", "idle", "ref_counts")):
        raise ValueError(f"stage must keep blocks that are found by their keys, as PrefixCache does, got {stage!r}")
    books: list[_Books] = []
    commit = stage.commit

    def and_look(seqs: list[Sequence], tokens: list[int]) -> list[Sequence]:
        done = commit(seqs, tokens)
        held = {s.seq_id: (list(tables.of(s.seq_id, 0)), s.num_cached_tokens) for s in stage.running}
        num_free = tables.num_free - len(tables.idle)
        books.append(_Books(dict(tables.block_of), list(tables.idle), held, num_free))
        return done

    with patch.object(stage, "commit", and_look):
        run = record_run(stage, work)
    seqs = [request.seq for request in run.requests]
    nodes = [_nodes(step, seqs, stage.block_size) for step in books]
    return TreeRun(run, stage.block_size, nodes, [step.num_free for step in books])


def _nodes(books: _Books, seqs: list[Sequence], size: int) -> list[Node]:
    holders: dict[int, list[int]] = {}
    for place, seq in enumerate(seqs):
        for own in books.held.get(seq.seq_id, ([], 0))[0]:
            holders.setdefault(own, []).append(place)
    nodes, taken = [], set()
    for seq in seqs:
        for i, key in enumerate(seq.block_keys):
            text, block = tuple(seq.token_ids[: (i + 1) * size]), books.block_of.get(key)
            if block is not None and text not in taken:
                line = books.idle.index(block) + 1 if block in books.idle else 0
                nodes.append(Node(text, None, block, size, tuple(holders.get(block, ())), line, is_found=True))
                taken.add(text)
    found = {node.block for node in nodes}
    for place, seq in enumerate(seqs):
        blocks, num_cached = books.held.get(seq.seq_id, ([], 0))
        for i, block in enumerate(blocks):
            if block not in found:
                text = tuple(seq.token_ids[: (i + 1) * size])
                num_tokens = min(size, max(0, num_cached - i * size))
                twin = place if text in taken else None
                nodes.append(Node(text, twin, block, num_tokens, tuple(holders[block]), 0, is_found=False))
                taken.add(text)
                found.add(block)
    return nodes
