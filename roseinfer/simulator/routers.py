"""Routers: which replica a request goes to. Each sees what the replicas hold at that moment, and its own record."""

from __future__ import annotations

from collections import defaultdict

from roseinfer.arrivals import Arrival

from .replica import Replica

# SGLang's router (policy cache_aware) has these defaults, and vLLM's production router took them over.
LEAST_MATCH = 0.3  # of a prompt: a shorter part of it is not worth going where it is
MOST_APART = 64  # requests between the busiest and the least busy replica ...
MOST_TIMES = 1.5  # ... and how many times as many: beyond both, load alone decides


class Router:
    """Chooses a replica for each request, in the order of arrival."""

    def choose(self, number: int, arrival: Arrival, replicas: list[Replica]) -> int:
        """Return the index of the replica that request number `number` goes to."""
        raise NotImplementedError


class RoundRobin(Router):
    """Takes the replicas in turn."""

    def choose(self, number: int, arrival: Arrival, replicas: list[Replica]) -> int:
        return number % len(replicas)


class PrefixAware(Router):
    """Takes the replica that was sent the longest part of the prompt: SGLang's router (policy cache_aware).

    Among several such replicas it takes the one with the fewest requests. A prompt of which no replica got more than
    LEAST_MATCH goes where the record is smallest. While the replicas have more than MOST_APART requests between them,
    and more than MOST_TIMES as many, a request goes to the one with the fewest. Ray Serve's PrefixCacheAffinityRouter
    has the same three cases, with other thresholds.

    The record is of what was sent, as a router outside the engines keeps it: it is not told of evictions. Prompts have
    nothing in common but their prefix, so the record has their prefixes alone.
    """

    def __init__(self) -> None:
        self._sent: dict[int, dict[int, int]] = defaultdict(dict)  # {text: {replica: the most tokens of it}}
        self._record: dict[int, int] = defaultdict(int)  # tokens that were new to each replica

    def choose(self, number: int, arrival: Arrival, replicas: list[Replica]) -> int:
        counts = [len(replica.requests) for replica in replicas]
        text, shared = arrival.prefix or (None, 0)
        matches = {i: min(sent, shared) for i, sent in self._sent[text].items()} if text is not None else {}
        index = self._index(arrival.prompt_len, counts, matches)
        matched = matches.get(index, 0)
        if text is not None:
            self._sent[text][index] = max(shared, self._sent[text].get(index, 0))
        self._record[index] += arrival.prompt_len - matched
        return index

    def _index(self, prompt_len: int, counts: list[int], matches: dict[int, int]) -> int:
        least, most = min(counts), max(counts)
        if most - least > MOST_APART and most > MOST_TIMES * least:
            return counts.index(least)
        longest = max(matches.values(), default=0)
        if longest > LEAST_MATCH * prompt_len:
            return min((i for i, match in matches.items() if match == longest), key=lambda i: (counts[i], i))
        return min(range(len(counts)), key=lambda i: (self._record[i], i))


ROUTERS: dict[str, type[Router]] = {
    "round_robin": RoundRobin,
    "prefix_aware": PrefixAware,
}
