"""walk_tables: a slider over the decode steps of a real run, with the pool and the block table that attention reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from roseinfer.display.figure import PALETTE
from roseinfer.generate import stream
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..measure.table_price import require_tables
from .step_sliders import CELL, OUTLINE, Stepper, faint

TD = "text-align: center; padding: 2px 9px; font-family: monospace"
NEW_TOKEN = "2px solid #D55E00"
GREY = "rgba(128, 128, 128, 0.25)"


def walk_tables(stage: Stage, prompts: list[list[int]], max_tokens: list[int], layer: int = 0) -> Stepper:
    """Run the prompts to their ends; a frame a decode step: one layer's pool, and its block table beside it.

    stage: one that keeps its tables in `device_buffer`, such as BlockTable. The table of a frame is
    read from there, so it is what attention was given. prompts[i] gets max_tokens[i] new tokens.
    Raises ValueError for a stage without block tables.
    """
    require_tables("stage", type(stage))
    seqs = [
        Sequence(list(prompt), SamplingParams(max_tokens=n, ignore_eos=True))
        for prompt, n in zip(prompts, max_tokens, strict=True)
    ]
    watched = _Watched(stage, seqs, layer)
    for _ in stream(watched, seqs):
        pass
    reused = len(watched.owners) - len({block for _, block in watched.owners})
    facts = f"largest table {watched.most_rows} x {watched.most_columns}; of {stage.tables.num_blocks} blocks "
    facts += f"{reused} used again, {stage.num_free_blocks} free at the end"
    return Stepper(watched.frames, "decode step", facts)


class _Watched:
    """A stage to whoever drives it; each decode step leaves a frame."""

    def __init__(self, stage: Stage, seqs: list[Sequence], layer: int) -> None:
        self.stage, self.seqs, self.layer = stage, seqs, layer
        self.frames: list[str] = []
        self.owners: set[tuple[int, int]] = set()  # (row of the sequence in seqs, block)
        self.most_rows = self.most_columns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def decode(self, running: list[Sequence]) -> Tensor:
        logits = self.stage.decode(running)
        used = self.stage.tables.blocks_for(max(seq.num_cached_tokens for seq in running))
        table = self.stage.tables_of(self.stage.device_buffer, running)[self.layer, :, :used].tolist()
        held = {self.seqs.index(seq): row for seq, row in zip(running, table, strict=True)}
        self.most_rows, self.most_columns = max(self.most_rows, len(table)), max(self.most_columns, used)
        self.owners |= {(i, block) for i in held for block in self._blocks(i)}
        self.frames.append(self._frame(held))
        return logits

    def _blocks(self, i: int) -> list[int]:
        return self.stage.tables.of(self.seqs[i].seq_id, self.layer)

    def _new_token(self, i: int) -> tuple[int, int]:
        """Block and slot of the token that this step has stored."""
        index, slot = divmod(self.seqs[i].num_cached_tokens - 1, self.stage.block_size)
        return self._blocks(i)[index], slot

    def _frame(self, held: dict[int, list[int]]) -> str:
        waiting = [i for i, seq in enumerate(self.seqs) if i not in held and not seq.finish_reason]
        finished = [i for i, seq in enumerate(self.seqs) if seq.finish_reason]
        status = f"<p><b>decode step {len(self.frames)}</b>"
        status += f" · waiting: {_names(waiting)} · finished, blocks freed: {_names(finished)}</p>"
        columns = "display: flex; flex-wrap: wrap; gap: 3em; align-items: flex-start"
        return f'{status}<div style="{columns}">{self._pool(held)}{self._table(held)}</div>'

    def _pool(self, held: dict[int, list[int]]) -> str:
        size = self.stage.block_size
        fills = {
            block: (i, min(size, max(0, self.seqs[i].num_cached_tokens - j * size)))
            for i in held
            for j, block in enumerate(self._blocks(i))
        }
        written = {self._new_token(i)[0] for i in held}
        cells = []
        for block in range(self.stage.tables.num_blocks):
            owner, filled = fills.get(block, (None, 0))
            text = "free" if owner is None else f"seq {owner}: {filled}/{size}"
            border = NEW_TOKEN if block in written else OUTLINE
            cells.append(
                f'<span style="{CELL}; border: {border}; width: 9.5em; text-align: center; '
                f'background: {_filled(owner, filled / size)}">{block} · {text}</span>'
            )
        caption = f"The pool of layer {self.layer}, by block; outlined: written in this step"
        return f'<div style="width: 34em"><p>{caption}</p>{"".join(cells)}</div>'

    def _table(self, held: dict[int, list[int]]) -> str:
        width = len(next(iter(held.values())))
        rows = []
        for i, row in held.items():
            block, slot = self._new_token(i)
            own = len(self._blocks(i))
            cells = [
                f'<td style="{TD}; border: {OUTLINE}; background: {_colour(i)}">{entry}</td>'
                if j < own
                else f'<td style="{TD}; border: {OUTLINE}; background: {GREY}; opacity: 0.5">{entry}</td>'
                for j, entry in enumerate(row)
            ]
            rows.append(
                f'<tr><td style="{TD}">seq {i}</td>{"".join(cells)}<td style="{TD}">{self._context_len(i)}</td>'
                f'<td style="{TD}">block {block}, slot {slot}</td></tr>'
            )
        numbers = "".join(f'<th style="{TD}">{j}</th>' for j in range(width))
        head = f'<tr><th></th>{numbers}<th style="{TD}">context_lens</th><th style="{TD}">the new token</th></tr>'
        caption = f"The table as attention gets it, [{len(held)}, {width}]; grey: behind a sequence's own, never used"
        return f"<div><p>{caption}</p><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"

    def _context_len(self, i: int) -> int:
        return self.seqs[i].num_cached_tokens - 1  # as the step began


def _names(seqs: list[int]) -> str:
    return ", ".join(f"seq {i}" for i in seqs) or "none"


def _colour(seq: int | None) -> str:
    return "transparent" if seq is None else faint(PALETTE[seq % len(PALETTE)])


def _filled(seq: int | None, share: float) -> str:
    return f"linear-gradient(90deg, {_colour(seq)} {share:.0%}, transparent {share:.0%})"
