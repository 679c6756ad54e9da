"""The content of a report: each of a post's tables beside ours.

Exact facts are judged. Times are another machine's: they stand side by side, with their ratio and the floor of this
machine, and are not judged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from roseinfer.bench.verdict import verdict

from ..data import Source, posted_facts

if TYPE_CHECKING:
    import pandas as pd

EQUAL, EXPLAINED, DIFFERENT = "equal", "explained", "different"
RECORDED = "Recorded on GPUs"  # the section of what was not measured here
Exact = int | float | str


@dataclass(frozen=True)
class Fact:
    """An exact fact as the post has it and as it is here. why: the reason for a difference.

    source: where the post's value comes from; None where its table, or a sentence beside it, states it.
    """

    what: str
    post: Exact
    here: Exact
    verdict: str
    why: str = ""
    source: Source | None = None


def judge(
    what: str, post: Exact, here: Exact, *, rule: Exact | None = None, why: str = "", source: Source | None = None
) -> Fact:
    """Compare `here` with the post's value, and return the fact with its verdict.

    rule: the value that must come out here, computed from known differences (versions, sizes); None: the post's value.
    why: the rule in a few words. source: of the post's value. The verdict is EQUAL if here equals the post's value, and
    then shows no why; EXPLAINED if it equals the rule; else DIFFERENT.
    """
    rule = post if rule is None else rule
    verdict = EQUAL if here == post else EXPLAINED if here == rule else DIFFERENT
    if verdict == DIFFERENT:
        why = f"not explained: the rule {f'({why}) ' if why else ''}gives {rule}"
    return Fact(what, post, here, verdict, "" if verdict == EQUAL else why, source)


class Ruled(NamedTuple):
    """A value measured here that need not be the post's.

    Args:
        here: the value.
        rule: what must come out here, computed from known differences.
        why: the rule in a few words; the reason in judged.json if empty.
    """

    here: Exact
    rule: Exact
    why: str = ""


def judged(post: str, measured: Mapping[str, Exact | Ruled]) -> list[Fact]:
    """Judge values measured here, by the names that the post's judged.json has for them."""
    posted = posted_facts(post)
    facts = []
    for what, value in measured.items():
        post_value, source, known_why = posted[what]
        here, rule, why = value if isinstance(value, Ruled) else Ruled(value, post_value)
        facts.append(judge(what, post_value, here, rule=rule, why=why or known_why, source=source))
    return facts


@dataclass(frozen=True)
class Time:
    """A time or rate of the post's machine and of this one. floor: the best that this machine could do, where known.

    All three are in `unit`. post is None where the post does not say, here where this machine could not measure it.
    source: as of a Fact.
    """

    what: str
    unit: str
    post: float | None
    here: float | None
    floor: float | None = None
    source: Source | None = None

    @property
    def ratio(self) -> float | None:
        """Ratio here / post; None if either is missing."""
        return self.here / self.post if self.post and self.here is not None else None

    @property
    def of_floor(self) -> float | None:
        """How much of the best is reached, 1 being all: a rate (tok/s) over its floor, a floor over its time."""
        if not self.floor or not self.here:
            return None
        is_rate = re.search(r"/s\b", self.unit)  # ms/step is not one
        return self.here / self.floor if is_rate else self.floor / self.here


def times_beside(
    table: pd.DataFrame, ours: Mapping[str, Mapping[str, float]], floors: Mapping[str, float]
) -> list[Time]:
    """Compare the figures of a table of the post's, a row for each metric, with ours of the same columns."""
    return [
        Time(f"{metric}, {column.replace('_', ', ')}", row["unit"], row[column], here[metric], floors.get(metric))
        for metric, row in table.iterrows()
        for column, here in ours.items()
    ]


def times_here(seconds: Mapping[str, float]) -> list[Time]:
    """Make times in ms of which the post gives none."""
    return [Time(what, "ms", None, 1e3 * taken) for what, taken in seconds.items()]


@dataclass(frozen=True)
class Grid:
    """Any other table: a histogram, definitions, a query's result. rows hold a value for each column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Exact | None]]
    title: str = ""  # the bold line above it

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Grid:
        """Make a grid of a frame's columns and rows, with None for NaN."""
        return cls(list(frame.columns), frame.astype(object).where(frame.notna(), None).to_numpy().tolist())

    @classmethod
    def of_runs(cls, what: str, runs: Mapping[str, Sequence[float]], decimals: int) -> Grid:
        """Show median, least and most of each row's figures; a row without any is left out. One run has no spread."""
        rows: list[tuple[Exact | None, ...]] = []
        for name, figures in runs.items():
            spread = [round(of(figures), decimals) for of in (min, max)] if len(figures) > 1 else [None, None]
            rows += [(name, len(figures), round(median(figures), decimals), *spread)] if figures else []
        return cls((what, "runs", "median", "least", "most"), rows)


def change(before: Sequence[float], after: Sequence[float]) -> str | None:
    """Return the change of the median, such as "+2.4%"; None for a single run, whose noise is not known."""
    return None if min(len(before), len(after)) < 2 else f"{median(after) / median(before) - 1:+.1%}"


def change_verdict(before: Sequence[float], after: Sequence[float]) -> str:
    """Judge a change of figures that are no speeds, in the words of bench.verdict: "higher", "lower"."""
    return verdict(before, after, "higher", "lower")


@dataclass(frozen=True)
class Section:
    """One of the post's tables or claims, beside ours, as template.written makes it.

    markdown: all of it, heading and tables included. samples: raw figures behind the tables, for the JSON file alone.
    """

    title: str
    markdown: str
    facts: Sequence[Fact] = ()
    times: Sequence[Time] = ()
    grids: Sequence[Grid] = ()
    samples: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NotRun:
    """A part of the post that was not reproduced, and what that needs (a machine, or a part still to be written)."""

    what: str
    needs: str


@dataclass(frozen=True)
class PostReport:
    """The reproduction of one post, and where it ran, as from bench.provenance.describe_host.

    about: the post's facts. arguments: what this run chose.
    """

    post: str
    about: dict[str, Any]
    arguments: dict[str, Any]
    sections: Sequence[Section]
    not_run: Sequence[NotRun]
    host: dict[str, Any]
    device: str
    versions: dict[str, Any]
    commit: str | None
    recorded_at: str  # ISO 8601, UTC

    @property
    def title(self) -> str:
        name = self.about.get("title")
        return f"Post {self.post} reproduced" + (f": {name}" if name else "")

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return f"{self.post}-{self.recorded_at[:10]}"

    @property
    def verdicts(self) -> Counter[str]:
        """How many facts are equal, explained and different."""
        return Counter(fact.verdict for section in self.sections for fact in section.facts)

    @property
    def different(self) -> list[Fact]:
        """Every fact that is different, with its section's title before its name."""
        every = ((section.title, fact) for section in self.sections for fact in section.facts)
        return [replace(fact, what=f"{title}: {fact.what}") for title, fact in every if fact.verdict == DIFFERENT]

    def to_json(self) -> str:
        """Write what was measured as JSON, raw samples included, without the text around it."""
        data = asdict(self)
        for section in data["sections"]:
            del section["markdown"]
        return json.dumps(data | {"verdicts": dict(self.verdicts)}, indent=1, allow_nan=False)
