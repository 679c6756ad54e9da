"""A slider over the steps of a real run: what each step computes, and how the blocks fill and are freed."""

from __future__ import annotations

import html
from collections.abc import Sequence as List

import ipywidgets
from tokenizers import Tokenizer

from roseinfer.display.figure import PALETTE
from roseinfer.generate import stream
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

CELL = "display: inline-block; border-radius: 3px; margin: 1px; font-family: monospace; font-size: 12px"
OUTLINE = "1px solid rgba(128, 128, 128, 0.6)"


class Stepper(ipywidgets.VBox):
    """Frames of HTML behind a slider. Its repr is the contract: the number of frames and exact facts.

    ipywidgets cuts a repr at 110 characters, so facts are short.
    """

    def __init__(self, frames: List[str], label: str, facts: str) -> None:
        if not frames:
            raise ValueError("frames must hold at least one frame, got none")
        self.frames = list(frames)
        self.facts = facts
        self.slider = ipywidgets.IntSlider(
            0, 0, len(frames) - 1, description=label, style={"description_width": "auto"}
        )
        self.slider.layout.width = "32em"
        self.view = ipywidgets.HTML(self.frames[0])
        self.slider.observe(self._show, names="value")
        super().__init__([self.slider, self.view])

    def __repr__(self) -> str:
        return f"{len(self.frames)} frames: {self.facts}"

    def _show(self, change: dict) -> None:
        self.view.value = self.frames[change["new"]]


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
    return Stepper(frames, "step", facts)


def _token_row(tokenizer: Tokenizer, label: str, known: list[int], cached: int, new: int, total: int) -> str:
    cells = [_token(tokenizer, t, "transparent" if i < cached else PALETTE[0]) for i, t in enumerate(known)]
    return (
        f'<div style="margin: 6px 0"><b>{label}</b>, {total} tokens computed so far<br>'
        f"{''.join(cells)} → {_token(tokenizer, new, PALETTE[1])}</div>"
    )


def _token(tokenizer: Tokenizer, token_id: int, colour: str) -> str:
    text = html.escape(tokenizer.decode([token_id])).replace(" ", "␣").replace("\n", "⏎")
    return f'<span style="{CELL}; border: {OUTLINE}; padding: 0 2px; background: {faint(colour)}">{text}</span>'


def walk_blocks(stage: Stage, prompts: list[list[int]], max_tokens: list[int], layer: int = 0) -> Stepper:
    """Run the prompts to their ends and keep a picture of one layer's block pool after every step."""
    seqs = [
        Sequence(list(prompt), SamplingParams(max_tokens=n, ignore_eos=True))
        for prompt, n in zip(prompts, max_tokens, strict=True)
    ]
    frames, owners, cached = [], set(), []
    fewest_free = stage.num_free_blocks
    made = 0
    for _ in stream(stage, seqs):
        made += 1
        fewest_free = min(fewest_free, stage.num_free_blocks)
        owners |= {(s.seq_id, b) for s in seqs if stage.holds(s) for b in stage.tables.of(s.seq_id, layer)}
        now = [s.num_cached_tokens for s in seqs]
        if now != cached:  # the first token that this step hands out; the others show the same pool
            cached = now
            frames.append(_pool(stage, seqs, layer))
    reused = len(owners) - len({block for _, block in owners})
    facts = f"{made} tokens; blocks: {stage.tables.num_blocks}, fewest free {fewest_free}, used again {reused}, "
    facts += f"free at the end {stage.num_free_blocks}"
    return Stepper(frames, "step", facts)


def _pool(stage: Stage, seqs: list[Sequence], layer: int) -> str:
    fills: dict[int, tuple[int, int]] = {}  # block -> (sequence, tokens in it)
    for i, seq in enumerate(seqs):
        if stage.holds(seq):
            for j, block in enumerate(stage.tables.of(seq.seq_id, layer)):
                fills[block] = (i, min(stage.block_size, max(0, seq.num_cached_tokens - j * stage.block_size)))
    cells = []
    for block in range(stage.tables.num_blocks):
        owner, filled = fills.get(block, (None, 0))
        share = filled / stage.block_size
        colour = "transparent" if owner is None else faint(PALETTE[owner % len(PALETTE)])
        text = "free" if owner is None else f"seq {owner}: {filled}"
        cells.append(
            f'<span style="{CELL}; border: {OUTLINE}; width: 10em; text-align: center; background: '
            f'linear-gradient(90deg, {colour} {share:.0%}, transparent {share:.0%})">{block} · {text}</span>'
        )
    rows = "".join(
        f"<tr><td>seq {i}</td><td style='text-align: right; padding: 0 2em'>{seq.num_cached_tokens}</td>"
        f"<td>{stage.tables.of(seq.seq_id, layer) if stage.holds(seq) else _without_blocks(seq)}</td></tr>"
        for i, seq in enumerate(seqs)
    )
    return (
        f'<div style="max-width: 60em">{"".join(cells)}</div>'
        "<table><thead><tr><th></th><th style='padding: 0 2em'>cached tokens</th>"
        f"<th>blocks of layer {layer}</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _without_blocks(seq: Sequence) -> str:
    return "freed" if seq.finish_reason else "waiting"


def _legend(entries: list[tuple[str, str]]) -> str:
    return "<p>" + " ".join(
        f'<span style="{CELL}; border: {OUTLINE}; padding: 0 6px; background: {faint(colour)}">{text}</span>'
        for text, colour in entries
    ) + "</p>"  # fmt: skip


def faint(colour: str) -> str:
    """A palette colour half transparent, so that text keeps the theme's own colour."""
    return colour if colour == "transparent" else f"{colour}80"
