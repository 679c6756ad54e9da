"""Clients that do anything at any moment: ask rightly, ask for too much, leave. What they are told has to be right."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from running import DEADLINE
from test_waits import SLOW_SCHEMA

TEXTS = ["If", "Return a new", "None", "The optional argument", "yes or no"]
CHOICES = ["yes", "no", "never"]
REFUSED = (400, 429, 503)
Ask = dict[str, Any]


class Storm:
    """expected: the text for each of TEXTS, greedy and with MOST_TOKENS. counts: what became of the clients. wrong:
    what none of them may be told."""

    MOST_TOKENS = 12

    def __init__(self, address: tuple[str, int], expected: dict[str, str], seed: int) -> None:
        self.address, self.expected, self._random = address, expected, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.is_ending = False  # from the first signal on, a connection may be refused or cut

    def run(self, num_clients: int, at_a_time: int = 24) -> None:
        seeds = [self._random.random() for _ in range(num_clients)]
        with ThreadPoolExecutor(at_a_time) as pool:
            list(pool.map(self._client, seeds))

    def _client(self, seed: float) -> None:
        draw = random.Random(seed)
        path, body, is_right = self._question(draw)
        leaves = draw.choice([None, None, "before the body", "within the body", "at once", "later"])
        try:
            with socket.create_connection(self.address, DEADLINE) as connection:
                self._count(self._exchange(draw, connection, path, body, leaves), is_right)
        except TimeoutError:
            self.wrong.append(f"{path} {body!r:.80} was not answered")
        except OSError as error:
            self.counts["cut"] += 1
            if not self.is_ending:
                self.wrong.append(f"{path} {body!r:.80}: {error!r}")

    def _question(self, draw: random.Random) -> tuple[str, Ask, Callable[[str], bool]]:
        """(path, body, whether a text answers it)."""
        text = draw.choice(TEXTS)
        body: Ask = {"max_tokens": self.MOST_TOKENS, "stream": draw.random() < 0.5}
        kind = draw.choice(["text", "text", "chat", "chat", "choice", "long", "slow", "many", "several"])
        if kind == "chat":
            messages = [{"role": "user", "content": text}]
            return "/v1/chat/completions", body | {"messages": messages}, lambda found: found == self.expected[text]
        if kind == "choice":
            wanted = {"choice": CHOICES}
            return "/v1/completions", body | {"prompt": text, "structured_outputs": wanted}, CHOICES.__contains__
        refused = {
            "long": {"prompt": "x" * draw.choice([20_000, 900_000])},
            "slow": {"prompt": text, "structured_outputs": {"json": SLOW_SCHEMA}},
            "many": {"prompt": text, "structured_outputs": {"choice": [f"choice {i}" for i in range(40_000)]}},
        }
        if kind in refused:
            return "/v1/completions", body | refused[kind], lambda found: False
        if kind == "several":
            body |= {"prompt": [text] * 5, "stream": False}
            return "/v1/completions", body, lambda found: found == self.expected[text]
        return "/v1/completions", body | {"prompt": text}, lambda found: found == self.expected[text]

    def _exchange(
        self, draw: random.Random, connection: socket.socket, path: str, body: Ask, leaves: str | None
    ) -> bytes | None:
        """The answer; None for a client that leaves."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode())
        if leaves == "before the body":
            return None
        if leaves == "within the body":
            connection.sendall(data[: draw.randrange(len(data))])
            return None
        connection.sendall(data)
        if leaves == "at once":
            return None
        if leaves == "later":
            connection.settimeout(draw.random() * 0.3)
            try:
                connection.recv(draw.randint(1, 4096))
            except TimeoutError:
                pass
            return None
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer

    def _count(self, answer: bytes | None, is_right: Callable[[str], bool]) -> None:
        if answer is None:
            self.counts["left"] += 1
            return
        if not answer and self.is_ending:
            self.counts["cut"] += 1
            return
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status == 200:
            texts, error = read(body)
            is_told = self.is_ending and "shutting down" in error
            self.counts["told" if is_told else "answered"] += 1
            if not is_told and (error or not all(map(is_right, texts))):
                self.wrong.append(f"{texts} {error}")
        else:
            self.counts[f"refused {status}"] += 1
            if status not in REFUSED or b'"error"' not in body:
                self.wrong.append(answer.decode()[:300])


def read(body: bytes) -> tuple[list[str], str]:
    """(the texts of an answer, what a stream's error says)."""
    texts: dict[int, str] = {}
    events = [line for line in body.decode().splitlines() if line.startswith(("data: {", "{"))]
    for event in map(json.loads, (line.removeprefix("data: ") for line in events)):
        if "error" in event:
            return [*texts.values()], event["error"]["message"]
        for choice in event["choices"]:
            part = choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + part
    return [*texts.values()], ""
