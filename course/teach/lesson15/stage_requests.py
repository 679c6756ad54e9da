"""request and run_out: single requests of a lesson, and a stage that runs them to their ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from roseinfer.sequence import SamplingParams, Sequence


def request(token_ids: Iterable[int], max_tokens: int = 8, parent: Sequence | None = None) -> Sequence:
    """Make a sequence that decodes greedily for exactly max_tokens. parent: the sequence whose prompt it shares."""
    return Sequence(list(token_ids), SamplingParams(max_tokens=max_tokens, ignore_eos=True), parent=parent)


def run_out(stage: Any, *seqs: Sequence) -> list[list[int]]:
    """Add sequences to a stage with a queue and step until it has no work. Returns the new tokens of each."""
    for seq in seqs:
        stage.add(seq)
    while stage.has_work:
        stage.step()
    return [seq.output_ids for seq in seqs]
