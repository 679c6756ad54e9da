"""The picture of draw_drafts: the text as it grows, what was drafted in each step, and the steps that drafts save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tokenizers import Tokenizer

from course.display.board import EDGE, WIDTH, Board, Cell, Frame, Line, Panel, flow
from roseinfer.arguments import counted
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE

PROMPT = Cell(0, 0, "prompt", EDGE, strength=0.25)
EARLIER = Cell(0, 0, "earlier steps")
ACCEPTED = Cell(0, 0, "drafted and accepted", PALETTE[2], outline=PALETTE[2])
REJECTED = Cell(0, 0, "drafted and rejected: crossed out", PALETTE[3], outline=PALETTE[3], dashed=True)
OWN = Cell(0, 0, "the model's own choice", outline=INK)
LEGEND = (PROMPT, EARLIER, ACCEPTED, OWN, REJECTED)
MOST_PROMPT = 60  # tokens of a prompt that are shown, its last ones
WIDEST_STEP, BESIDE_STEPS = 14, 230  # pixels: a step of one token, and what the texts beside all steps need


@dataclass(frozen=True)
class DraftStep:
    """A step of a request with drafts. draft: the drafted ids. tokens: the ids that the sequence got."""

    draft: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        same = (a == b for a, b in zip(self.draft, self.tokens, strict=False))
        return sum(accumulate(same, min))

    @property
    def rejected(self) -> tuple[int, ...]:
        """Drafted tokens that the model did not choose; empty where the text ended within the draft."""
        return self.draft[self.num_accepted :] if len(self.tokens) > self.num_accepted else ()

    @property
    def is_mixed(self) -> bool:
        return bool(self.rejected) and self.num_accepted > 0

    def __str__(self) -> str:
        if not self.draft:
            return "nothing drafted, 1 token"
        return f"{len(self.draft)} drafted, {self.num_accepted} accepted, {counted(len(self.tokens), 'token')}"


def picture_of(steps: Sequence[DraftStep], prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Board:
    """Draw a frame for each step. steps: the first one is the prompt's, without a draft."""
    num_tokens = sum(len(step.tokens) for step in steps)
    drafted = sum(len(step.draft) for step in steps)
    accepted = sum(step.num_accepted for step in steps)
    frames = [
        Frame(
            [_text_panel(steps[: number + 1], prompt_ids, tokenizer), _steps_panel(steps[: number + 1], num_tokens)],
            f"step {number}: {step if number else 'the prompt, 1 token'}",
        )
        for number, step in enumerate(steps)
    ]
    total = f"{counted(num_tokens, 'token')} in {counted(len(steps), 'step')}, {num_tokens} steps without drafts"
    with_drafts = [f"step {number}: {step}" for number, step in enumerate(steps) if step.draft]
    text = "\n".join([f"{total}; {accepted} of {drafted} drafted tokens accepted", *with_drafts])
    still = max(range(len(steps)), key=lambda i: (steps[i].is_mixed, steps[i].num_accepted))
    return Board(frames, text, shown=still, legend=LEGEND)


def readable(tokenizer: Tokenizer, token_id: int) -> str:
    """Write a token as text with visible spaces and line ends, and a special token by its name."""
    text: str = tokenizer.decode([token_id]) or tokenizer.id_to_token(token_id) or ""
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")


def _text_panel(steps: Sequence[DraftStep], prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Panel:
    """Draw the text after the last step in that step's colours; rejected tokens come last, so that nothing moves."""
    *earlier, now = steps
    styled = [
        *((token, PROMPT) for token in prompt_ids[-MOST_PROMPT:]),
        *((token, EARLIER) for step in earlier for token in step.tokens),
        *((token, ACCEPTED) for token in now.tokens[: now.num_accepted]),
        *((token, OWN) for token in now.tokens[now.num_accepted :]),
        *((token, REJECTED) for token in now.rejected),
    ]
    num_prompt = len(prompt_ids)
    cut = f", its last {MOST_PROMPT} of {num_prompt} tokens" if num_prompt > MOST_PROMPT else ""
    panel = flow(
        (replace(style, text=readable(tokenizer, token)) for token, style in styled),
        f"the prompt{cut}, and what follows",
    )
    crosses = [
        Line((cell.row + 0.46, cell.column + 2), (cell.row + 0.46, cell.column + cell.width - 4), INK)
        for cell in panel.cells
        if cell.outline == REJECTED.outline
    ]
    return replace(panel, lines=crosses)


def _steps_panel(steps: Sequence[DraftStep], most: int) -> Panel:
    """Draw each step as wide as its tokens, green where drafts were accepted; below it the same tokens one by one.

    most: tokens at the end.
    """
    sizes = [len(step.tokens) for step in steps]
    starts = list(accumulate(sizes, initial=0))
    end = starts[-1]
    pitch = min(WIDEST_STEP, (WIDTH - BESIDE_STEPS) / most)
    cells = [
        Cell(0, start, size if size > 1 else "", ACCEPTED.colour if size > 1 else "", width=size)
        for start, size in zip(starts, sizes, strict=False)
    ]
    cells += [Cell(1, start) for start in range(end)]
    for row, count in enumerate((len(steps), end)):
        cells.append(Cell(row, end + 0.5, counted(count, "step"), outline="none", width=90 / pitch))
    title = f"{counted(sizes[-1], 'token')} in this step, {end} in all. Each box is a step; a number counts its tokens"
    return Panel(cells, title, rows=("with drafts", "without"), cell=(pitch, 20), size=11)
