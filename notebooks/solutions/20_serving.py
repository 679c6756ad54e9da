# --- 20.1
class EventReader:
    def __init__(self):
        self.rest, self.parts, self.is_done = b"", [], False

    def feed(self, chunk):
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        texts = []
        for line in lines:
            line = line.removesuffix(b"\r").decode()
            if line.startswith("data:"):
                self.parts.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and self.parts:
                text, self.parts = "\n".join(self.parts), []
                self.is_done |= text == "[DONE]"
                if not self.is_done:
                    texts.append(text)
        return texts


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
import asyncio


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
