"""Lesson 20: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from course.teach import check
from course.teach.exercises.solutions import solution
from course.teach.lesson20 import server_checks, virtual_clock
from course.teach.lesson20.virtual_clock import START, VirtualLoop


@pytest.fixture
def impatient(monkeypatch):
    """The checkers wait for less than the seconds that they give to a learner."""
    monkeypatch.setattr(virtual_clock, "LONGEST", 0.3)
    monkeypatch.setattr(server_checks, "SECONDS", 1.0)


def waiting(test):
    """A test whose checker waits until it gives up."""
    return pytest.mark.slow(pytest.mark.usefixtures("impatient")(test))


# 20.1

GET, HAND_OVER = "await queue.get()", "self.loop.call_soon_threadsafe(self.queues[seq].put_nowait, news)"
OBEY = "while not self.engine.has_work or not self.calls.empty():"


def server(changes):
    return solution("20.1", changes)


test_wrong_servers = wrong_answers(
    "20.1",
    {
        "the last token": (server({"output_ids[num_sent:]": "output_ids[-1:]"}), "tokens were lost"),
        "all tokens again": (server({"num_sent = len(output_ids)": "pass"}), "tokens come twice"),
        "no abort": (
            server({"self.queues.pop(seq)": "pass", "self.engine.abort(seq)": "pass"}),
            "a client has left, and the engine writes on",
        ),
        "closed, but not cancelled": (server({"finally:": "except GeneratorExit:"}), "also when it is cancelled"),
        "aborts what has ended": (server({"if seq.finish_reason is None": "if True"}), "a sequence that has ended"),
        "steps without work": (server({OBEY: "while not self.calls.empty():"}), "engine.step without work"),
        "spins": (
            server({
                OBEY: "while not self.calls.empty():",
                "in self.engine.step()": "in self.engine.step() if self.engine.has_work else ()",
            }),
            "takes a whole core",
        ),
        "aborts on the loop": (server({"self.calls.put((self.end, seq))": "self.end(seq)"}), "on the event loop"),
        "one by one": (server({" or not self.calls.empty()": ""}), "only when the one before has ended"),
        "the loop's queue": (server({HAND_OVER: "self.queues[seq].put_nowait(news)"}), "Non-thread-safe"),
        "a coroutine": (server({"yield token": "pass"}), "must be an async generator"),
        "a wrong name": (server({"put_nowait, news": "put_later, news"}), "the thread has ended: "),
        "no class": (3, "expected a class, got 3"),
    },
)  # fmt: skip
test_servers_that_let_clients_wait = waiting(
    wrong_answers(
        "20.1",
        {
            "blocks the loop": (
                server({"= asyncio.Queue()": "= SimpleQueue()", GET: "queue.get()", "put_nowait": "put"}),
                "the event loop is blocked",
            ),
            "at the end": (server({HAND_OVER: f"news[1] and {HAND_OVER}"}), "hand it to this client"),
            "all but the first at the end": (
                server({HAND_OVER: f"(len(news[0]) <= 2 or news[1]) and {HAND_OVER}"}),
                "hand it to this client",
            ),
            "no end": (server({"while not has_ended": "while True"}), "has waited 4 s"),
            "no thread": (server({"Thread(target=self.run, daemon=True).start()": "pass"}), "has waited 4 s"),
        },
    )
)


class WithACondition:
    """A condition in place of a queue to the thread, and an end mark in the queue of each client."""

    def __init__(self, engine):
        self.engine, self.loop = engine, asyncio.get_running_loop()
        self.has_news, self.coming, self.leaving, self.sent = threading.Condition(), {}, [], {}
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            with self.has_news:
                self.has_news.wait_for(lambda: self.coming or self.leaving or self.engine.has_work)
                coming, leaving, self.coming, self.leaving = self.coming, self.leaving, {}, []
            for seq, queue in coming.items():
                self.sent[seq] = queue, 0
                self.engine.add(seq)
            for seq in leaving:
                if self.sent.pop(seq, None) and not seq.finish_reason:
                    self.engine.abort(seq)
            for seq in self.engine.step() if self.engine.has_work else ():
                queue, num = self.sent[seq]
                new = seq.output_ids[num:] + [None] * bool(seq.finish_reason)
                self.sent[seq] = queue, len(seq.output_ids)
                self.loop.call_soon_threadsafe(lambda queue=queue, new=new: [queue.put_nowait(one) for one in new])

    def new_queue(self):
        return asyncio.Queue()

    async def tokens(self, seq):
        queue = self.new_queue()
        with self.has_news:
            self.coming[seq] = queue
            self.has_news.notify()
        try:
            while (token := await queue.get()) is not None:
                yield token
        finally:
            with self.has_news:
                self.leaving.append(seq)
                self.has_news.notify()


class OneQueue(WithACondition):
    def new_queue(self):
        return self.__dict__.setdefault("news", asyncio.Queue())


test_servers_with_one_queue = wrong_answers("20.1", {"one queue": (OneQueue, "another client's tokens")})


class Looks(solution("20.1")):
    """A client looks at its sequence from time to time, and the thread hands it nothing."""

    def run(self):
        while True:
            while not self.engine.has_work or not self.calls.empty():
                call, *arguments = self.calls.get()
                call(*arguments)
            self.engine.step()

    async def tokens(self, seq):
        self.calls.put((self.begin, seq, None))
        num_sent, has_ended = 0, False
        try:
            while not has_ended:
                has_ended = seq.finish_reason is not None
                for token in seq.output_ids[num_sent:]:
                    num_sent += 1
                    yield token
                await asyncio.sleep(0.001)
        finally:
            self.calls.put((self.end, seq))


test_right_servers = right_answers("20.1", {"a condition": WithACondition, "looks at the sequence": Looks})

# 20.2

RANK = "ttfts[math.ceil(0.99 * len(ttfts)) - 1]"
quality = solution("20.2")
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


test_right_qualities = right_answers("20.2", {"loops": with_loops, "an array": lambda *case: np.array(quality(*case))})


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
    return [*await solution("20.3", asyncio=asyncio)(arrivals[:-1], send, now), 1.0]


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
test_loops_that_hold_up_all = waiting(
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
