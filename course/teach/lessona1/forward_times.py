"""time_forwards: how long a forward takes by the number of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from ..views.said import Said, say


@dataclass(frozen=True, repr=False)
class ForwardTimes:
    """Times of forwards. ms: the median by number of tokens, in increasing order. warning: why not to believe them."""

    ms: dict[int, float]
    warning: str = ""

    def ratio(self, num_tokens: int) -> float:
        """Divide a forward's time by that of the fewest tokens, mostly one. Raises KeyError if it was not measured."""
        return self.ms[num_tokens] / next(iter(self.ms.values()))

    @property
    def table(self) -> Table:
        rows = [
            {"tokens": n, "ms": ms, "times the first": self.ratio(n), "ms per token": ms / n}
            for n, ms in self.ms.items()
        ]
        live = ["ms", "times the first", "ms per token"]
        formats = {"ms": "{:.2f}", "times the first": "{:.1f}", "ms per token": "{:.3f}"}
        return table(rows, live, "One forward of a prompt", "medians, measured in turn", formats, self.warning)

    def say(self, num_tokens: int) -> Said:
        """Say what a token costs in a forward of num_tokens, and how long the longest forward takes against it."""
        fewest, most = min(self.ms), max(self.ms)
        ratio, share = self.ratio(num_tokens), self.ratio(num_tokens) * fewest / num_tokens
        single = "a single token" if fewest == 1 else f"a token in the forward of {fewest}"
        return say(
            "what a token costs in a longer forward",
            f"A forward of {num_tokens} tokens takes {ratio:.1f} times as long as a forward of {_tokens(fewest)}. "
            f"Each of its tokens costs {share:.0%} of what {single} costs.",
            f"A forward of {most} tokens, {most / num_tokens:.0f} times as many, takes "
            f"{self.ms[most] / self.ms[num_tokens]:.1f} times as long as one of {num_tokens}.",
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.table._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.table)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def time_forwards(model: Model, token_counts: Sequence[int], repeats: int = 20) -> ForwardTimes:
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
    return ForwardTimes({int(name): one for name, one in ms.items()}, busy_sentence([sample]))
