"""draw_drafts: a request on a stage with drafts, step by step."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from course.display.board import Board
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence

from .draft_picture import DraftStep, picture_of

BLOCK_SIZE = 16
MOST_ROWS = 16  # of a step: the last token, and what is drafted


def draw_drafts(
    stage_class: type[Any], model: Model, tokenizer: Tokenizer, prompt_ids: list[int], max_tokens: int = 64
) -> Board:
    """Draw a frame for each step of a greedy request: the text so far, what was drafted, and what of it was accepted.

    stage_class: with a method `draft`, as stage 19 has. The answer ends at the model's end token, or after max_tokens.
    Raises ValueError as a stage does for a request.
    """
    seq = Sequence(list(prompt_ids), SamplingParams(max_tokens))
    return picture_of(record_drafts(stage_class, model, seq), prompt_ids, tokenizer)


def record_drafts(stage_class: type[Any], model: Model, seq: Sequence) -> list[DraftStep]:
    """Run a sequence alone to its end, and return the steps that gave it tokens; the first one is its prompt's."""
    drafted: list[int] = []

    class Recording(stage_class):
        def draft(self, seq: Sequence, num_tokens: int) -> list[int]:
            drafted[:] = super().draft(seq, num_tokens)[:num_tokens]
            return list(drafted)

    stage = Recording(model, num_blocks=-(-seq.max_len // BLOCK_SIZE), block_size=BLOCK_SIZE, max_num_seqs=MOST_ROWS)
    stage.add(seq)
    steps = []
    while stage.has_work:
        drafted.clear()
        before = len(seq)
        stage.step()
        if len(seq) > before:
            steps.append(DraftStep(tuple(drafted), tuple(seq.token_ids[before:])))
    return steps
