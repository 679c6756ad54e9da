"""time_forwards: how long a forward takes by the number of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import torch

from roseinfer.arguments import require_count, require_counts
from roseinfer.bench.neighbours import busy_sentence, with_waiting
from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.reference import reference_logits

from ..measure.median_times import median_ms
from ..views.rows_table import table


def time_forwards(model: Model, token_counts: Sequence[int], repeats: int = 20) -> Table:
    """Time forwards of prompts of these lengths, without a cache, logits included.

    Raises ValueError for no number of tokens, for one that is there twice, below 1 or above the model's positions, and
    for repeats below 1.
    """
    require_counts("token_counts", token_counts)
    require_count("repeats", repeats, at_least=1)
    for count in token_counts:
        if count > model.config.max_model_len:
            raise ValueError(f"token_counts must be at most {model.config.max_model_len}, got {count}")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (max(token_counts),), generator=generator).tolist()
    calls = {str(n): partial(reference_logits, model, ids[:n]) for n in sorted(token_counts)}
    started = perf_counter()
    ms, waited = with_waiting(lambda: median_ms(calls, repeats))
    sample = {"waited_seconds": waited, "seconds": perf_counter() - started}
    first = next(iter(ms.values()))
    rows = [
        {"tokens": int(n), "ms": one, "times the first": one / first, "ms per token": one / int(n)}
        for n, one in ms.items()
    ]
    formats = {"ms": "{:.2f}", "times the first": "{:.1f}", "ms per token": "{:.3f}"}
    note = "medians, measured in turn"
    return table(rows, list(formats), "One forward of a prompt", note, formats, busy_sentence([sample]))
