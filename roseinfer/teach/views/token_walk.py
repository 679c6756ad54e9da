"""walk_tokens: a slider over the steps of a generation, with the tokens that each step computes."""

from __future__ import annotations

import html

from tokenizers import Tokenizer

from roseinfer.display.figure import PALETTE

from .stepper import OUTLINE, Stepper, faint

CELL = f"display: inline-block; border-radius: 3px; margin: 1px; font: 12px monospace; border: {OUTLINE}"


def walk_tokens(tokenizer: Tokenizer, prompt_ids: list[int], output_ids: list[int]) -> Stepper:
    """Which tokens each step computes to make output_ids, without a cache and with one."""
    total_without = total_with = 0
    frames = []
    for step, new in enumerate(output_ids):
        known = prompt_ids + output_ids[:step]
        cached = 0 if step == 0 else len(known) - 1
        total_without += len(known)
        total_with += len(known) - cached
        frames.append(
            f"<p><b>{'prefill' if step == 0 else f'decode step {step}'}</b></p>"
            + _token_row(tokenizer, "no cache", known, 0, new, total_without)
            + _token_row(tokenizer, "KV cache", known, cached, new, total_with)
            + _legend([("computed now", PALETTE[0]), ("read from the cache", "transparent"), ("new", PALETTE[1])])
        )
    facts = f"{total_without} tokens computed without a cache, {total_with} with one"
    return Stepper(frames, "step", f"{len(frames)} frames: {facts}")


def _token_row(tokenizer: Tokenizer, label: str, known: list[int], cached: int, new: int, total: int) -> str:
    cells = [_token(tokenizer, t, "transparent" if i < cached else PALETTE[0]) for i, t in enumerate(known)]
    return (
        f'<div style="margin: 6px 0"><b>{label}</b>, {total} tokens computed so far<br>'
        f"{''.join(cells)} → {_token(tokenizer, new, PALETTE[1])}</div>"
    )


def _token(tokenizer: Tokenizer, token_id: int, colour: str) -> str:
    text = html.escape(tokenizer.decode([token_id])).replace(" ", "␣").replace("\n", "⏎")
    return f'<span style="{CELL}; padding: 0 2px; background: {faint(colour)}">{text}</span>'


def _legend(entries: list[tuple[str, str]]) -> str:
    cells = (
        f'<span style="{CELL}; padding: 0 6px; background: {faint(colour)}">{text}</span>' for text, colour in entries
    )
    return f"<p>{' '.join(cells)}</p>"
