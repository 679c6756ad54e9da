"""Lesson 20: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import asyncio
import codecs
import re
import statistics
import time

import numpy as np
import pytest
from wrong_answers import changed, right_answers, wrong_answers

from course.teach import check
from course.teach.exercises.solutions import solution
from course.teach.lesson20.virtual_clock import START, VirtualLoop

# 20.1

EventReader = solution("20.1")
INIT = 'self.rest, self.parts, self.is_done = b"", [], False'
IN_THE_CLASS = 'self.rest, self.is_done = b"", False\n\n    parts = []'


def blank_lines(self, chunk):
    """Know only \\n\\n."""
    *events, self.rest = (self.rest + chunk).split(b"\n\n")
    return [event.decode().removeprefix("data: ") for event in events]


test_wrong_readers = wrong_answers(
    "20.1",
    {
        "parts in the class": (
            solution("20.1", {INIT: IN_THE_CLASS}),
            "you return [['of another reader\\na']], expected [['a']]",
        ),
        "strips [DONE]": (
            solution("20.1", {'text == "[DONE]"': 'text.strip() == "[DONE]"'}),
            "you return [[]",
        ),
        "a line of spaces is empty": (solution("20.1", {"not line and": "not line.strip() and"}), "you return"),
        "a text": (solution("20.1", {"return texts": 'return "".join(texts)'}), "you return"),
        "blank lines": (changed(EventReader, feed=blank_lines), "you return"),
    },
)


class ByDecoder:
    """An incremental decoder, then text."""

    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.text, self.is_done = "", False

    def feed(self, chunk):
        self.text += self.decoder.decode(chunk)
        found = []
        while match := re.match(r"((?:[^\n]+\n)*)(?:\r?\n)", self.normal()):
            lines = match[1].split("\n")
            self.text = self.normal()[match.end() :]
            parts = [re.sub("^data: ?", "", line) for line in lines if line.startswith("data:")]
            if parts and not self.is_done:
                self.is_done = "\n".join(parts) == "[DONE]"
                found += [] if self.is_done else ["\n".join(parts)]
        return found

    def normal(self):
        return self.text.replace("\r\n", "\n")


class OneList(EventReader):
    """Returns the same list each time, with other texts."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def feed(self, chunk):
        self.texts[:] = super().feed(chunk)
        return self.texts


test_right_readers = right_answers("20.1", {"a decoder": ByDecoder, "one list": OneList})

# 20.2

RANK = "ttfts[math.ceil(0.99 * len(ttfts)) - 1]"
INTERPOLATED = "(statistics.quantiles([*ttfts, *ttfts], n=100, method='inclusive')[98])"

test_wrong_qualities = wrong_answers(
    "20.2",
    {
        "interpolated": (solution("20.2", {RANK: INTERPOLATED}, statistics=statistics), "p99_ttft"),
        "one rank too high at 100 answers": (
            solution("20.2", {RANK: "ttfts[min(int(0.99 * len(ttfts)), len(ttfts) - 1)]"}),
            "p99_ttft",
        ),
    },
)


def with_loops(records, ttft_limit, tpot_limit):
    begin = min(record[0] for record in records)
    end = max(record[2] for record in records if record[2] is not None)
    good = num = 0
    ttfts = []
    for arrival, first, last, tokens, how in records:
        if how != "complete":
            continue
        num += 1
        ttfts.append(first - arrival)
        gaps = tokens - 1
        good += first - arrival <= ttft_limit and (not gaps or last - first <= tpot_limit * gaps)
    return [num / (end - begin), good / (end - begin), good / len(records), sorted(ttfts)[-(-99 * num // 100) - 1]]


def by_ranks(records, ttft_limit, tpot_limit):
    """p99: the least TTFT that 99% do not exceed."""
    done = [r for r in records if r.how == "complete"]
    ttfts = [r.first - r.arrival for r in done]
    p99 = min(t for t in ttfts if 100 * sum(other <= t for other in ttfts) >= 99 * len(ttfts))
    seconds = max(r.last or 0 for r in records) - min(r.arrival for r in records)
    good = sum(r.first <= r.arrival + ttft_limit and r.last <= r.first + tpot_limit * (r.tokens - 1) for r in done)
    return len(done) / seconds, good / seconds, good / len(records), p99


test_right_qualities = right_answers("20.2", {"loops": with_loops, "ranks": by_ranks})


# 20.3


def not_async(arrivals, send, now):
    return [0.0 for _ in arrivals]


async def busy_waiting(arrivals, send, now):
    begin, latencies = now(), []
    for number, arrival in enumerate(arrivals):
        while now() < begin + arrival:
            pass
        await send(number)
        latencies.append(now() - begin - arrival)
    return latencies


async def forgets_the_last(arrivals, send, now):
    return [*await solution("20.3")(arrivals[:-1], send, now), 1.0]


async def never_ends(arrivals, send, now):
    await asyncio.get_running_loop().create_future()


async def eight_at_a_time(arrivals, send, now):
    begin, slots = now(), asyncio.Semaphore(8)

    async def one(number):
        await asyncio.sleep(begin + arrivals[number] - now())
        async with slots:
            await send(number)
        return now() - begin - arrivals[number]

    return await asyncio.gather(*map(one, range(len(arrivals))))


async def holds_up_all(arrivals, send, now):
    begin, tasks = now(), []
    for number, arrival in enumerate(arrivals):
        time.sleep(max(0.0, begin + arrival - now()))
        tasks.append(asyncio.ensure_future(send(number)))
    await asyncio.gather(*tasks)
    return [now() - begin - arrival for arrival in arrivals]


test_wrong_loops = wrong_answers(
    "20.3",
    {
        "no async def": (not_async, "a coroutine or an awaitable is required"),
        "forgets one": (forgets_the_last, "sent: you return [], expected [[0, 3.0]]"),
        "waits for nothing": (never_ends, "nothing is left to wait for"),
        "eight at a time": (eight_at_a_time, "sent: you return"),
    },
)
test_loops_that_hold_up_all = pytest.mark.slow(  # the checker waits for 2 s
    wrong_answers(
        "20.3",
        {
            "asks the clock": (busy_waiting, "a loop that looks at the clock"),
            "time.sleep": (holds_up_all, "time.sleep, and a loop"),
        },
    )
)


async def in_one_loop(arrivals, send, now):
    """Sleeps in one place, and makes a task for each request."""
    begin, tasks = now(), []

    async def one(number):
        await send(number)
        return now() - begin - arrivals[number]

    for number, arrival in enumerate(arrivals):
        delay = begin + arrival - now()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(one(number)))
    return [await task for task in tasks]


async def with_timers(arrivals, send, now):
    loop, begin = asyncio.get_running_loop(), now()
    latencies = [None] * len(arrivals)
    done = asyncio.Semaphore(0)

    async def one(number):
        await send(number)
        latencies[number] = now() - begin - arrivals[number]
        done.release()

    for number, arrival in enumerate(arrivals):
        loop.call_later(arrival, lambda number=number: loop.create_task(one(number)))
    for _ in arrivals:
        await done.acquire()
    return tuple(latencies)


test_right_loops = right_answers("20.3", {"one loop": in_one_loop, "timers": with_timers})


def test_a_virtual_clock_moves_by_sleeping_and_by_work():
    loop = VirtualLoop()

    async def twice():
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        loop.clock.now += 5
        return loop.time()

    assert loop.run(twice()) == START + 7205


def test_an_error_on_the_virtual_clock_is_raised():
    async def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="^no$"):
        VirtualLoop().run(fails())


# 20.4


test_wrong_rules = wrong_answers(
    "20.4",
    {
        "a number": (lambda *state: 1, "you return 1, expected True"),
        "divides by none": (solution("20.4", {"if len(ends) < 2": "if False"}), "IndexError"),
        "a rate of no seconds": (
            solution(
                "20.4",
                {
                    "return True\n": "return True\n    if num_queued < num_free:\n        return True\n",
                    "* mean_gap": "/ (1 / mean_gap)",
                },
            ),
            "ZeroDivisionError",
        ),
    },
)


def test_a_truth_value_is_explained_only_by_a_mistake_that_gives_all_of_them():
    verdict = check("20.4", solution("20.4", {"<= limit": "<= limit + 1"}))
    assert verdict.mistake.endswith("you return True, expected False")


def by_rate(num_queued, num_free, ends, limit):
    if num_queued < num_free or len(ends) < 2:
        return True
    seconds, count = ends[-1] - ends[0], len(ends) - 1
    return seconds * (num_queued - num_free + 1) <= limit * count


def by_numpy(num_queued, num_free, ends, limit):
    return len(ends) < 2 or bool((num_queued + 1 - num_free) * np.diff(ends).mean() <= limit)


test_right_rules = right_answers("20.4", {"by the rate": by_rate, "NumPy": by_numpy})
