"""walk_slots: a slider over the tokens of a flat batch, and the way of each to its slot in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.chart import INK

EARLIER = 0.2  # strength of tokens that were in the pool before this step


@dataclass(frozen=True)
class NewToken:
    """Token at `position` of sequence `seq`, whose K and V go to `slot`."""

    seq: int
    position: int
    slot: int


def walk_slots(
    slot_mapping: Tensor, query_start: Tensor, context_lens: Tensor, block_tables: Tensor, block_size: int
) -> Board:
    """Draw a frame per token of a flat batch: its position, row entry and slot, and the pool so far.

    The arguments are what one step hands attention, the tensors of kernels.attention. A batch of a few dozen tokens can
    be read.
    """
    starts, lengths = query_start.tolist(), context_lens.tolist()
    slots = slot_mapping.tolist()
    tokens = [
        NewToken(seq, lengths[seq] - (stop - n), slots[n])
        for seq, (start, stop) in enumerate(pairwise(starts))
        for n in range(start, stop)
    ]
    rows = [row[: -(-n // block_size)] for row, n in zip(block_tables.tolist(), lengths, strict=True)]
    frames = [_frame(n, tokens, rows, block_size) for n in range(len(tokens))]
    return Board(frames, _facts(tokens, rows, block_size), "token")


def _facts(tokens: list[NewToken], rows: list[list[int]], block_size: int) -> str:
    """Write one line per sequence: its positions, and runs of slots."""
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


def _frame(now: int, tokens: list[NewToken], rows: list[list[int]], block_size: int) -> Frame:
    token = tokens[now]
    column, offset = divmod(token.position, block_size)
    block = rows[token.seq][column]
    return Frame(
        [_batch(now, tokens), _pool(now, tokens, rows, block_size), _tables(token, rows, block_size)],
        f"token {now} of the batch is position {token.position} of sequence {token.seq}.",
        f"{token.position} = {column} × {block_size} + {offset}: column {column} of its row names block {block}, and "
        f"{block} × {block_size} + {offset} is slot {token.slot}.",
    )


def _batch(now: int, tokens: list[NewToken]) -> Panel:
    """Show position and slot of each token of the flat batch; slots after the token `now` are still empty."""
    cells = [Cell(0, n, token.position, token.seq, outline=_outline(n == now)) for n, token in enumerate(tokens)]
    cells += [Cell(1, n, token.slot if n <= now else "", outline=_outline(n == now)) for n, token in enumerate(tokens)]
    return Panel(cells, rows=("positions", "slot_mapping"))


def _pool(now: int, tokens: list[NewToken], rows: list[list[int]], block_size: int) -> Panel:
    """Show one row per block and one column per slot: pale if cached before, a number if this step has written it."""
    held: dict[int, Cell] = {}
    for seq, row in enumerate(rows):
        first_new = min((token.position for token in tokens if token.seq == seq), default=0)
        for position in range(first_new):
            block, offset = row[position // block_size], position % block_size
            held[block * block_size + offset] = Cell(block, offset, colour=seq, strength=EARLIER)
    for n, token in enumerate(tokens[: now + 1]):
        held[token.slot] = Cell(*divmod(token.slot, block_size), n, token.seq, outline=_outline(n == now))
    num_blocks = 1 + max(max(row) for row in rows)
    cells = [held.get(slot, Cell(*divmod(slot, block_size))) for slot in range(num_blocks * block_size)]
    title = "The pool, block by block; pale: cached before; a number: the token written there"
    return Panel(cells, title, range(num_blocks), range(block_size))


def _tables(token: NewToken, rows: list[list[int]], block_size: int) -> Panel:
    now = token.seq, token.position // block_size
    cells = [
        Cell(seq, column, block, seq, outline=_outline((seq, column) == now))
        for seq, row in enumerate(rows)
        for column, block in enumerate(row)
    ]
    return Panel(cells, "block_tables", [f"seq {seq}" for seq in range(len(rows))])


def _outline(is_now: bool) -> str:
    return INK if is_now else ""
