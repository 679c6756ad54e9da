"""walk_tokens: a slider over the steps of a generation, with the tokens that each step computes."""

from __future__ import annotations

from tokenizers import Tokenizer

from course.display.board import CHAR, WIDTH, Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE

NOW, NEW = PALETTE[0], PALETTE[1]
LEGEND = (Cell(0, 0, "computed now", NOW), Cell(0, 0, "read from the cache"), Cell(0, 0, "new", NEW))
LETTER, SPACE = 12 * CHAR, 9  # pixels


def walk_tokens(tokenizer: Tokenizer, prompt_ids: list[int], output_ids: list[int]) -> Board:
    """Show which tokens each step computes to make output_ids, without a cache and with one."""
    total_without = total_with = 0
    frames = []
    for step, new in enumerate(output_ids):
        known = prompt_ids + output_ids[:step]
        cached = 0 if step == 0 else len(known) - 1
        total_without += len(known)
        total_with += len(known) - cached
        texts = [_text(tokenizer, token_id) for token_id in (*known, new)]
        panels = [
            _row(f"no cache, {total_without} tokens computed so far", texts, 0),
            _row(f"KV cache, {total_with} tokens computed so far", texts, cached),
        ]
        frames.append(Frame(panels, "prefill" if step == 0 else f"decode step {step}"))
    facts = f"{total_without} tokens computed without a cache, {total_with} with one"
    return Board(frames, f"{len(frames)} frames: {facts}", legend=LEGEND)


def _row(title: str, texts: list[str], cached: int) -> Panel:
    """Show the known tokens, the first `cached` of them cached, and after an arrow the new one, in lines."""
    cells, row, x = [], 0, 0.0
    colours = ["" if i < cached else NOW for i in range(len(texts) - 1)]
    for text, colour, outline in [*((t, c, "") for t, c in zip(texts, colours, strict=False)), ("→", "", "none")]:
        row, x = _place(row, x, text)
        cells.append(Cell(row, x, text, colour, outline=outline, width=_width(text)))
        x += _width(text)
    row, x = _place(row, x, texts[-1])
    cells.append(Cell(row, x, texts[-1], NEW, width=_width(texts[-1])))
    return Panel([*cells, Cell(0, 0, width=WIDTH, outline="none")], title, cell=(1, 24))


def _place(row: int, x: float, text: str) -> tuple[int, float]:
    return (row, x) if x + _width(text) <= WIDTH else (row + 1, 0)


def _width(text: str) -> float:
    return len(text) * LETTER + SPACE


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.decode([token_id]).replace(" ", "␣").replace("\n", "⏎")
