"""rows_in_post_004: rows of block tables that a stage builds in each step of post 004's run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from course.posts.data import post_facts
from roseinfer.models import Model, random_model, shape_of
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

BLOCKS = 9  # of 64 tokens, for each sequence: enough for the run's last token


@cache
def layers_of_gpt2() -> Model:
    """Return a tiny model with the layers and positions of GPT-2. Only its config is used: it never runs."""
    gpt2 = shape_of("random:gpt2")
    tiny = replace(gpt2, hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=8, intermediate_size=8, vocab_size=64)
    return random_model(tiny)


def rows_in_post_004(stage_class: type[Stage]) -> list[int]:
    """Count the rows built in each decode step of post 004's run: 64 sequences that start together, GPT-2's layers.

    stage_class: one that counts rows_built. No model runs.
    """
    facts = post_facts("004")
    stage, seqs = _ready(stage_class, facts["max_batch_size"], num_tokens=1)
    rows = []
    for _ in range(facts["max_new_tokens"] - 1):
        before = stage.rows_built
        stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
        stage.build(seqs)
        rows.append(stage.rows_built - before)
        for seq in seqs:
            seq.num_cached_tokens += 1
    return rows


def host_part(stage_class: type[Stage], num_seqs: int) -> Callable[[], object]:
    """Return a call that builds the inputs of one decode step with GPT-2's layers, away from the edge of a block."""
    stage, seqs = _ready(stage_class, num_seqs, num_tokens=490)
    stage.tables.reserve({seq.seq_id: 500 for seq in seqs})
    return partial(stage.build, seqs)


def _ready(stage_class: type[Stage], num_seqs: int, num_tokens: int) -> tuple[Any, list[Sequence]]:
    stage = stage_class(layers_of_gpt2(), num_blocks=BLOCKS * num_seqs, max_num_seqs=num_seqs)
    seqs = [Sequence([0]) for _ in range(num_seqs)]
    for seq in seqs:
        seq.num_cached_tokens = num_tokens
    return stage, seqs
