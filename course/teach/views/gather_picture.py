"""draw_gather: blocks of one layer, beside the padded batch that a dense stage gathers from them."""

from __future__ import annotations

from collections import abc

from course.display.board import WIDTH, Board, Cell, Frame, Panel
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

LABELS = 60  # pixels


def draw_gather(stage: Stage, seqs: abc.Sequence[Sequence]) -> Board:
    """Draw blocks of the first layer and, to the right, the padded batch [B, H_kv, T, D] that a dense stage gathers.

    A token is as wide on the left as on the right.
    """
    lengths, size = [seq.num_cached_tokens for seq in seqs], stage.block_size
    longest = max(lengths)
    width = -(-longest // size) * size
    blocks, batch = [], []
    for row, (seq, n) in enumerate(zip(seqs, lengths, strict=True)):
        for j, block in enumerate(stage.tables.of(seq.seq_id, 0)):
            filled = min(size, max(0, n - j * size)) / size
            blocks.append(Cell(row, j * size, f"block {block}", row, filled=filled, width=size))
        batch.append(Cell(row, 0, colour=row, width=n))
        if n < longest:
            batch.append(Cell(row, n, f"{longest - n} padding", hatched=True, width=longest - n))
    labels = [f"seq {row}" for row in range(len(seqs))]
    cell = (WIDTH - 2 * LABELS) / (width + longest), 36
    kept = "layer 0: blocks, kept one by one"
    gathered = f"gathered: one batch, padded to T = {longest}"
    panels = [
        Panel(blocks, kept, labels, unit="token", cell=cell),
        Panel(batch, gathered, labels, unit="token", cell=cell),
    ]
    padding = sum(longest - n for n in lengths)
    return Board(
        [Frame(panels)],
        f"Blocks of {len(seqs)} sequences with {lengths} cached tokens, gathered into a batch of "
        f"{len(seqs)} x {longest}: {sum(lengths)} tokens of content and {padding} of padding.",
    )
