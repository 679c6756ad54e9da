"""What decides how fast drafts are: seconds of a step by its rows, and the share of drafted tokens that hold."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..measure.median_times import median_ms
from ..measure.ready_batch import ready_batch
from ..views.rows_table import table
from .drafts import record_drafts

CONTEXT, REPEATS = 64, 30
MAX_TOKENS = 64


def time_rows(stage_class: type[Stage], model: Model, most: int = 9) -> Table:
    """Time decode steps of 1 to `most` rows, in turn: row n of the column "ms" is a step with n drafted tokens."""
    stage, seqs = ready_batch(stage_class, model, [CONTEXT] * sum(range(most + 1)))
    coming = iter(seqs)  # each number of rows has sequences of its own
    batches = {str(rows): list(islice(coming, rows)) for rows in range(1, most + 1)}
    times = median_ms({rows: partial(decode_step, stage, batch) for rows, batch in batches.items()}, REPEATS)
    rows = [{"rows": int(name), "ms": ms, "ms per row": ms / int(name)} for name, ms in times.items()]
    title = f"decode steps of {stage_class.name}, {CONTEXT} cached tokens in each row"
    note = f"ms: the median of {REPEATS} interleaved steps"
    return table(rows, ["ms", "ms per row"], title, note, {"ms": "{:.3f}", "ms per row": "{:.3f}"})


def acceptance(stage_class: type[Any], model: Model, prompt: list[int], max_tokens: int = MAX_TOKENS) -> float:
    """Compute the share of drafted tokens accepted, of those after accepted ones. Raises ValueError without drafts."""
    seq = Sequence(list(prompt), SamplingParams(max_tokens))
    steps = record_drafts(stage_class, model, seq)
    accepted = sum(step.num_accepted for step in steps)
    judged = accepted + sum(bool(step.rejected) for step in steps)
    if not judged:
        raise ValueError(f"no token of {max_tokens} was drafted from this prompt: take a text that repeats itself")
    return accepted / judged
