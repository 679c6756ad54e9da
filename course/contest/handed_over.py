"""HandedOver: the judge's record of which prompts an entry has. It has at most eight at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roseinfer.arguments import is_integer

from .places import PLACES
from .refused import Refused
from .workload import Request


class HandedOver:
    """Tracks the requests of one run. tokens: of each request that has ended, by its number."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.waiting = set(range(len(requests)))
        self.running: set[int] = set()
        self.tokens: dict[int, Any] = {}

    @property
    def all_ended(self) -> bool:
        return len(self.tokens) == len(self.requests)

    def answer(self, said: dict[str, Any]) -> list[list[int]]:
        """Keep the tokens of the requests that have ended, and return the prompts of those that begin.

        Raises Refused for a request that begins or ends out of turn, and for a ninth.
        """
        ended, begun = said.get("ended", ()), said.get("begun", ())
        is_list = isinstance(ended, list) and isinstance(begun, list)
        if not is_list or any(not isinstance(one, list) or len(one) != 2 for one in ended):
            raise Refused(f"it writes {str(said)[:60]!r} where its tokens are read: an entry only returns them")
        for number, tokens in ended:
            self._move(number, self.running, None)
            self.tokens[number] = tokens
        for number in begun:
            self._move(number, self.waiting, self.running)
        if len(self.running) > PLACES:
            raise Refused(f"it asks for {len(self.running)} requests at a time, allowed: {PLACES}")
        return [self.requests[number].prompt for number in begun]

    def tokens_in_order(self) -> list[list[int]]:
        """Return the tokens of all requests. Raises Refused for tokens that checked_shape refuses."""
        return checked_shape([self.tokens[number] for number in range(len(self.requests))], self.requests)

    def _move(self, number: object, here: set[int], there: set[int] | None) -> None:
        if not is_integer(number) or number not in here:
            raise Refused(f"it names request {str(number)[:40]} out of turn: each begins once, and ends once")
        here.remove(number)
        if there is not None:
            there.add(number)


def checked_shape(tokens: list[Any], requests: Sequence[Request]) -> list[list[int]]:
    """Return the tokens. Raises Refused unless each request has a list of as many token ids as were asked for."""
    for number, (own, request) in enumerate(zip(tokens, requests, strict=True)):
        if not isinstance(own, list) or any(type(token) is not int for token in own):
            raise Refused(f"request {number}: its tokens are not a list of ids")
        if len(own) != request.max_tokens:
            raise Refused(f"request {number}: it gives {len(own)} tokens, {request.max_tokens} were asked for")
    return tokens
