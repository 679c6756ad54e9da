"""walk_tokens: a slider over the steps of a generation, with the tokens that each step computes."""

from __future__ import annotations

from tokenizers import Tokenizer

from course.display.board import Board, Cell, Frame, Panel, flow
from roseinfer.display.figure import PALETTE

NOW, NEW = PALETTE[0], PALETTE[1]
LEGEND = (Cell(0, 0, "computed now", NOW), Cell(0, 0, "read from the cache"), Cell(0, 0, "new", NEW))


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
    """Show the known tokens, the first `cached` of them cached, and after an arrow the new one."""
    *known, new = texts
    cells = [Cell(0, 0, text, "" if place < cached else NOW) for place, text in enumerate(known)]
    return flow([*cells, Cell(0, 0, "→", outline="none"), Cell(0, 0, new, NEW)], title)


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.decode([token_id]).replace(" ", "␣").replace("\n", "⏎")
