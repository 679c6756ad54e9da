"""What results of races have in common: groups of samples, the comparison with a rival, and the sentences below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from roseinfer.display.measured import MachineResult

from .provenance import where_in_full
from .verdict import explanation, runs_text, verdict

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RaceResult(MachineResult):
    """A result of a race. left_out: the contenders that did not run, and why."""

    SHORT_FIELDS: ClassVar = (*MachineResult.SHORT_FIELDS, "left_out")

    left_out: dict[str, str]

    def notes(self) -> list[str]:
        return [self.note]

    @property
    def note(self) -> str:
        a = self.arguments
        about = (
            f"{a['model']} on {where_in_full(self)}. {runs_text(a['repeats'])} each; the table has the median. ~ in "
            f"place of ×: the ranges overlap. {explanation(a['repeats'])}"
        )
        by_reason: dict[str, list[str]] = {}
        for who, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(who)
        absent = [f"{', '.join(who)} left out: {reason}." for reason, who in by_reason.items()]
        return " ".join([about, *self.sentences(), *absent])

    def sentences(self) -> Iterator[str]:
        """Yield what the columns of this race mean, and what is to be said of its tokens."""
        raise NotImplementedError


def grouped(samples: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group samples by their values under these names, in the order in which the values are first seen."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for sample in samples:
        groups.setdefault(tuple(sample[name] for name in names), []).append(sample)
    return groups


def against_hf(own: Sequence[float], theirs: Sequence[float] | None) -> Row:
    """Compare speeds with transformers' in the same cell: the ratio of the medians, and the verdict."""
    if not theirs:
        return {"vs_hf": None, "verdict": None}
    return {"vs_hf": median(own) / median(theirs), "verdict": verdict(theirs, own) if theirs is not own else None}


def range_text(lengths: Sequence[int]) -> str:
    low, high = lengths
    return str(low) if low == high else f"{low} to {high}"
