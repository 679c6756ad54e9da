# --- 20.1
import asyncio
from asyncio import get_running_loop
from queue import SimpleQueue
from threading import Thread


class Server:
    def __init__(self, engine):
        self.engine, self.loop = engine, get_running_loop()
        self.calls, self.queues = SimpleQueue(), {}
        Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            # 1. Between two steps, do what the event loop asks for. Without work, wait for it.
            while not self.engine.has_work or not self.calls.empty():
                call, *arguments = self.calls.get()
                call(*arguments)
            # 2. Run a step, and hand each client its news.
            for seq in self.engine.step():
                news = seq.output_ids, seq.finish_reason is not None
                self.loop.call_soon_threadsafe(self.queues[seq].put_nowait, news)

    def begin(self, seq, queue):
        self.queues[seq] = queue
        self.engine.add(seq)

    def end(self, seq):
        self.queues.pop(seq)
        if seq.finish_reason is None:
            self.engine.abort(seq)

    async def tokens(self, seq):
        queue, num_sent, has_ended = asyncio.Queue(), 0, False
        self.calls.put((self.begin, seq, queue))
        try:
            while not has_ended:
                output_ids, has_ended = await queue.get()
                for token in output_ids[num_sent:]:
                    yield token
                num_sent = len(output_ids)
        finally:
            self.calls.put((self.end, seq))


# --- 20.2
import math


def quality(records, ttft_limit, tpot_limit):
    complete = [r for r in records if r.how == "complete"]

    def is_good(r):
        return r.first - r.arrival <= ttft_limit and r.last - r.first <= tpot_limit * (r.tokens - 1)

    seconds = max(r.last for r in records if r.last is not None) - min(r.arrival for r in records)
    num_good = sum(map(is_good, complete))
    ttfts = sorted(r.first - r.arrival for r in complete)
    p99_ttft = ttfts[math.ceil(0.99 * len(ttfts)) - 1]
    return len(complete) / seconds, num_good / seconds, num_good / len(records), p99_ttft


# --- 20.3
async def open_loop(arrivals, send, now):
    start = now()

    async def one(number):
        due = start + arrivals[number]
        await asyncio.sleep(due - now())
        await send(number)
        return now() - due

    return await asyncio.gather(*(one(number) for number in range(len(arrivals))))


# --- 20.4
def admit(num_queued, num_free, ends, limit):
    if len(ends) < 2:
        return True
    mean_gap = (ends[-1] - ends[0]) / (len(ends) - 1)
    return (num_queued + 1 - num_free) * mean_gap <= limit
