"""20.2: throughput, goodput, the share of good answers and a percentile from the records of a load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, inf
from random import Random
from typing import NamedTuple

from ..exercises.drawn import Comparison, Expected, draw, inputs


class Record(NamedTuple):
    """A request of a load, with times in seconds; first and last are None where no token came."""

    arrival: float
    first: float | None
    last: float | None
    tokens: int
    how: str


Records = list[Record]


def seconds_of(records: Records) -> float:
    return max(r.last for r in records if r.last is not None) - min(r.arrival for r in records)


def complete(records: Records) -> Records:
    return [r for r in records if r.how == "complete"]


def ttft(record: Record) -> float:
    assert record.first is not None
    return record.first - record.arrival


def tpot(record: Record, gaps: int = 1) -> float:
    assert record.first is not None and record.last is not None
    return (record.last - record.first) / (record.tokens - gaps) if record.tokens > 1 else 0.0


def is_good(record: Record, ttft_limit: float, tpot_limit: float, gaps: int = 1) -> bool:
    return record.how == "complete" and ttft(record) <= ttft_limit and tpot(record, gaps) <= tpot_limit


def throughput(records: Records, *limits: float) -> float:
    return len(complete(records)) / seconds_of(records)


def goodput(
    records: Records,
    ttft_limit: float,
    tpot_limit: float,
    good: Callable[..., bool] = is_good,
) -> float:
    return sum(good(r, ttft_limit, tpot_limit) for r in records) / seconds_of(records)


def attained(records: Records, ttft_limit: float, tpot_limit: float) -> float:
    return sum(is_good(r, ttft_limit, tpot_limit) for r in records) / len(records)


def p99_ttft(records: Records, *limits: float, rank: Callable[[int], int] = lambda n: ceil(0.99 * n) - 1) -> float:
    found = sorted(map(ttft, complete(records)))
    return found[rank(len(found))]


def _in_time_alone(record: Record, ttft_limit: float, tpot_limit: float) -> bool:
    return record.first is not None and ttft(record) <= ttft_limit and tpot(record) <= tpot_limit


QUALITY = {
    "throughput": Expected(
        throughput,
        {
            "records come in any order: find the first arrival": lambda records, *limits: (
                len(complete(records)) / (max(r.last for r in records if r.last) - records[0].arrival or inf)
            ),
            "only complete answers count": lambda records, *limits: len(records) / seconds_of(records),
            "from the first arrival of any request, also of one that was refused": lambda records, *limits: (
                len(complete(records))
                / (max(r.last for r in records if r.last is not None) - min(r.arrival for r in complete(records)))
            ),
            "until the last token of any request, also of one that failed": lambda records, *limits: (
                len(complete(records))
                / (max(r.last for r in complete(records) if r.last is not None) - min(r.arrival for r in records))
            ),
            "from the first arrival: a load does not begin at second 0": lambda records, *limits: (
                len(complete(records)) / max(r.last for r in records if r.last is not None)
            ),
            "until the last token of any answer, not until the last arrival": lambda records, *limits: (
                len(complete(records))
                / ((max(r.arrival for r in records) - min(r.arrival for r in records)) or seconds_of(records))
            ),
        },
    ),
    "goodput": Expected(
        goodput,
        {
            "an answer that failed or was refused is not good, however fast it began": partial(
                goodput, good=_in_time_alone
            ),
            "a good answer keeps both limits": partial(
                goodput, good=lambda r, first, gap: is_good(r, first, float("inf"))
            ),
            "a time equal to its limit keeps it": partial(
                goodput, good=lambda r, a, b: r.how == "complete" and ttft(r) < a and (tpot(r) < b or tpot(r) == 0)
            ),
            "n tokens have n - 1 gaps between them": partial(goodput, good=partial(is_good, gaps=0)),
            "answers per second, not answers": lambda records, *limits: float(
                sum(is_good(r, *limits) for r in records)
            ),
        },
    ),
    "attained": Expected(
        attained,
        {
            "of all requests: one that was refused or failed is not good": lambda records, *limits: (
                sum(is_good(r, *limits) for r in records) / len(complete(records))
            ),
        },
    ),
    "p99_ttft": Expected(
        p99_ttft,
        {
            "nearest rank: the smallest value that at least 99 in a hundred do not exceed": partial(
                p99_ttft, rank=lambda n: int(0.99 * (n - 1))
            ),
            "a percentile, not the mean": lambda records, *limits: (
                sum(map(ttft, complete(records))) / len(complete(records))
            ),
            "a percentile, not the largest": partial(p99_ttft, rank=lambda n: n - 1),
            "of complete answers: the others have no whole one": lambda records, *limits: (
                (found := sorted(ttft(r) for r in records if r.first is not None))[ceil(0.99 * len(found)) - 1]
            ),
        },
    ),
}  # fmt: skip


def _answer(rng: Random, begin: float, parts: int) -> Record:
    """Draw a complete answer."""
    arrival = begin + rng.randint(0, 40) / 8
    tokens = rng.choice((1, 2, 3, 5, 9))
    first = arrival + rng.randint(1, parts) / parts
    return Record(arrival, first, first + (tokens - 1) * rng.randint(1, 4) / 8, tokens, "complete")


def _record(rng: Random, begin: float, parts: int) -> Record:
    how = rng.choice(("complete", "complete", "complete", "refused", "failed"))
    if how == "refused" or (how == "failed" and rng.random() < 0.5):
        return Record(begin + rng.randint(0, 40) / 8, None, None, 0, how)
    return _answer(rng, begin, parts)._replace(how=how)


def _draw_records(rng: Random) -> tuple[Records, float, float]:
    count = rng.choice((1, 2, 3, 4, 6, 100, 250))
    begin = rng.choice((0.0, 2.0, 100.0))
    parts = 8 if count < 100 else 8192  # of a second: in a large load no two TTFTs are the same
    records = [_record(rng, begin, parts) for _ in range(count)]
    # The first to arrive, and the last to end, may be of any kind.
    records.append(Record(begin, begin + rng.randint(1, parts) / parts, begin + 3.0, 5, "complete"))
    if rng.random() < 0.5:
        records.append(Record(begin - rng.randint(1, 8) / 8, None, None, 0, "refused"))
    if rng.random() < 0.5:
        records.append(Record(begin, begin + 1.0, begin + 20.0 + rng.randint(1, 8) / 8, 9, "failed"))
    if count == 100:  # of complete answers, where rounding by hand goes wrong
        lacking = 100 - len(complete(records))
        records += [_answer(rng, begin, parts) for _ in range(lacking)]
    return rng.sample(records, len(records)), rng.randint(2, 8) / 8, rng.randint(1, 4) / 8


def one(arrival: float, first: float, last: float, tokens: int, how: str = "complete") -> Record:
    return Record(arrival, first, last, tokens, how)


LOADS: list[tuple[Records, float, float]] = [
    ([one(0.0, 0.5, 1.5, 3)], 0.5, 0.5),
    ([one(1.0, 1.5, 2.5, 3)], 0.5, 0.5),
    ([one(0.0, 0.5, 0.5, 1)], 0.5, 0.5),
    ([one(0.0, 0.5, 1.5, 3), one(1.0, 2.0, 3.0, 3)], 0.5, 0.5),
    ([one(0.0, 0.5, 2.5, 3), one(1.0, 1.5, 2.5, 3)], 0.5, 0.5),
    ([one(0.0, 0.5, 1.5, 3), Record(0.5, None, None, 0, "refused")], 0.5, 0.5),
    ([one(0.0, 0.5, 1.5, 3), one(0.5, 0.75, 1.0, 2, "failed")], 0.5, 0.5),
    ([Record(0.0, None, None, 0, "refused"), one(0.5, 1.0, 2.0, 3)], 0.5, 0.5),
    ([one(0.0, 0.5, 1.5, 3), one(0.5, 0.75, 3.0, 2, "failed")], 0.5, 0.5),
    *draw(_draw_records, 60),
]
QUALITIES = Comparison(LOADS, QUALITY, inputs("records", "ttft_limit", "tpot_limit"))
