"""walk_slots: a slider over the tokens of a flat batch, and the way of each to its slot in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from roseinfer.display.figure import PALETTE

from .stepper import OUTLINE, Stepper, faint

CELL = "box-sizing: border-box; min-width: 27px; height: 22px; padding: 0 3px; text-align: center; font: 12px monospace"
NOW = "outline: 3px solid currentColor; outline-offset: -3px"
EARLIER = 0.25  # of a colour: tokens that were in the pool before this step


@dataclass(frozen=True)
class NewToken:
    """The token at `position` of sequence `seq`, whose K and V go to `slot`."""

    seq: int
    position: int
    slot: int


def walk_slots(
    slot_mapping: Tensor, query_start: Tensor, context_lens: Tensor, block_tables: Tensor, block_size: int
) -> Stepper:
    """A frame a token of what one step hands attention: its position, its row's entry, its slot; and the pool so far.

    The tensors are those of kernels.attention; a batch of a few dozen tokens can be read.
    """
    starts, lengths = query_start.tolist(), context_lens.tolist()
    slots = slot_mapping.tolist()
    tokens = [
        NewToken(seq, lengths[seq] - (stop - n), slots[n])
        for seq, (start, stop) in enumerate(pairwise(starts))
        for n in range(start, stop)
    ]
    rows = [row[: -(-n // block_size)] for row, n in zip(block_tables.tolist(), lengths, strict=True)]
    frames = [
        f"{_sentence(n, tokens[n], rows, block_size)}{_batch(n, tokens)}"
        '<div style="display: flex; flex-wrap: wrap; gap: 0 2.5em; align-items: flex-start">'
        f"{_pool(n, tokens, rows, block_size)}{_tables(tokens[n], rows, block_size)}</div>"
        for n in range(len(tokens))
    ]
    return Stepper(frames, "token", _facts(tokens, rows, block_size))


def _facts(tokens: list[NewToken], rows: list[list[int]], block_size: int) -> str:
    """A line a sequence: its positions, and runs of slots."""
    lines = [f"{len(tokens)} new tokens of {len(rows)} sequences, blocks of {block_size} tokens"]
    for seq, row in enumerate(rows):
        own = [token for token in tokens if token.seq == seq]
        runs: list[list[int]] = []
        for token in own:
            if runs and token.slot == runs[-1][1] + 1:
                runs[-1][1] = token.slot
            else:
                runs.append([token.slot, token.slot])
        lines.append(
            f"sequence {seq}, blocks {row}: positions {_run(own[0].position, own[-1].position)} -> slots "
            f"{', '.join(_run(*run) for run in runs)}"
        )
    return "\n".join(lines)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _sentence(n: int, token: NewToken, rows: list[list[int]], block_size: int) -> str:
    column, offset = divmod(token.position, block_size)
    block = rows[token.seq][column]
    return (
        f"<p><b>token {n}</b> of the batch is position {token.position} of sequence {token.seq}. "
        f"{token.position} = {column} × {block_size} + {offset}: column {column} of its row names block {block}, "
        f"and {block} × {block_size} + {offset} is slot <b>{token.slot}</b>.</p>"
    )


def _batch(now: int, tokens: list[NewToken]) -> str:
    """The flat batch: position and slot of each token, as far as they are worked out."""
    positions = "".join(_cell(t.position, faint(_colour(t.seq)), n == now) for n, t in enumerate(tokens))
    slots = "".join(_cell(t.slot if n <= now else "", "transparent", n == now) for n, t in enumerate(tokens))
    head = '<th style="text-align: right; padding-right: 8px">{}</th>'
    return (
        f'<div style="overflow-x: auto"><table style="border-collapse: collapse; margin: 6px 0">'
        f"<tr>{head.format('positions')}{positions}</tr><tr>{head.format('slot_mapping')}{slots}</tr></table></div>"
    )


def _pool(now: int, tokens: list[NewToken], rows: list[list[int]], block_size: int) -> str:
    """A row a block, a column a slot: pale what was cached before, with a number what this step has written."""
    first_new: dict[int, int] = {}
    for token in tokens:
        first_new.setdefault(token.seq, token.position)
    earlier = {
        rows[seq][position // block_size] * block_size + position % block_size: seq
        for seq, first in first_new.items()
        for position in range(first)
    }
    written = {token.slot: n for n, token in enumerate(tokens[: now + 1])}
    lines = []
    for block in range(1 + max(max(row) for row in rows)):
        cells = []
        for slot in range(block * block_size, (block + 1) * block_size):
            if slot in written:
                n = written[slot]
                cells.append(_cell(n, faint(_colour(tokens[n].seq)), n == now))
            else:
                cells.append(_cell("", _pale(earlier[slot]) if slot in earlier else "transparent", False))
        lines.append(f'<tr><th style="text-align: right; padding-right: 8px">{block}</th>{"".join(cells)}</tr>')
    head = "".join(f'<td style="{CELL}">{offset}</td>' for offset in range(block_size))
    return (
        "<div><p>The pool, block by block; pale: cached before; a number: the token written there</p>"
        f'<table style="border-collapse: collapse"><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'
    )


def _tables(token: NewToken, rows: list[list[int]], block_size: int) -> str:
    lines = []
    for seq, row in enumerate(rows):
        cells = "".join(
            _cell(block, faint(_colour(seq)), seq == token.seq and column == token.position // block_size)
            for column, block in enumerate(row)
        )
        lines.append(f'<tr><th style="text-align: right; padding-right: 8px">seq {seq}</th>{cells}</tr>')
    return f'<div><p>block_tables</p><table style="border-collapse: collapse">{"".join(lines)}</table></div>'


def _cell(text: object, ground: str, now: bool) -> str:
    return f'<td style="{CELL}; border: {OUTLINE}; background: {ground}; {NOW if now else ""}">{text}</td>'


def _colour(seq: int) -> str:
    return PALETTE[seq % len(PALETTE)]


def _pale(seq: int) -> str:
    return f"{_colour(seq)}{round(255 * EARLIER):02X}"
