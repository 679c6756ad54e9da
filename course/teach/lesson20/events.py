"""Server-sent events: the reader that 20.1 asks for, with the mistakes that are easily made in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Chunks = list[bytes]
Texts = list[list[str]]
DONE = "[DONE]"
ANOTHER_STREAM = b"data: another\n"  # cut in the middle of an event


@dataclass(frozen=True)
class Rules:
    """Rules by which events are read; the defaults are right."""

    keeps_rest: bool = True
    most_of_a_chunk: int | None = None
    decodes_chunks: bool = False
    is_late: bool = False
    gives_done: bool = False
    ends_at_done: bool = True
    done_is_a_line: bool = False
    data: Callable[[str], str] = lambda text: text.removeprefix(" ")
    needs_space: bool = False
    keeps_comments: bool = False
    knows_crlf: bool = True
    between: str = "\n"
    keeps_empty: bool = False


class Reader:
    """A reader of a stream in chunks; each call of feed gives the texts of the events that are complete now."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self._rest = b""
        self._data: list[str] = []
        self._held: list[str] = []
        self._is_done = False

    def feed(self, chunk: bytes) -> list[str]:
        rules = self.rules
        if rules.decodes_chunks:
            chunk = chunk.decode(errors="replace").encode()
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest if rules.keeps_rest else b""
        found = []
        for line in lines:
            if self._is_done and rules.ends_at_done:
                break
            found += self._read(line.decode(errors="replace"))
        if rules.is_late:
            self._held += found
            found, self._held = self._held[:-1], self._held[-1:]
        return found[: rules.most_of_a_chunk]

    def _read(self, line: str) -> list[str]:
        rules = self.rules
        line = line.removesuffix("\r") if rules.knows_crlf else line
        if line:
            self._take(line)
            return []
        data, self._data = self._data, []
        if not data and not rules.keeps_empty:
            return []
        text = rules.between.join(data)
        if text == DONE or (rules.done_is_a_line and DONE in data):
            self._is_done = True
            return [text] if rules.gives_done else []
        return [text]

    def _take(self, line: str) -> None:
        rules = self.rules
        if line.startswith("data:" + " " * rules.needs_space):
            self._data.append(rules.data(line[5:]))
        elif rules.keeps_comments:
            self._data.append(line.removeprefix(":"))


def texts_of(rules: Rules) -> Callable[[Chunks], Texts]:
    def read(chunks: Chunks) -> Texts:
        reader = Reader(rules)
        return [reader.feed(chunk) for chunk in chunks]

    return read


def mixed_up(chunks: Chunks) -> Texts:
    """Read the chunks with what was read of another stream before."""
    reader = Reader()
    reader.feed(ANOTHER_STREAM)
    return [reader.feed(chunk) for chunk in chunks]


MISTAKES = {
    "an event may be cut anywhere: keep what is not complete for the next call": Rules(keeps_rest=False),
    "a chunk may hold several events": Rules(most_of_a_chunk=1),
    "a character may be cut in half: keep bytes, and decode whole lines": Rules(decodes_chunks=True),
    "an event is complete at its empty line: give it then": Rules(is_late=True),
    "[DONE] is the end of the stream, not a text": Rules(gives_done=True),
    "nothing counts after [DONE]": Rules(ends_at_done=False),
    "[DONE] ends the stream only if it is the whole text of an event": Rules(done_is_a_line=True),
    "only one space after the colon is not part of the text": Rules(data=str.strip),
    "the space after the colon is not part of the text": Rules(data=str),
    "the space after the colon may be missing": Rules(needs_space=True),
    "a line that does not begin with data: is no part of the text": Rules(keeps_comments=True),
    "a line may end with \\r\\n, too": Rules(knows_crlf=False),
    "several data lines of an event are joined with \\n": Rules(between=""),
    "an event without a data line is no event": Rules(keeps_empty=True),
}

WORDS = ["a", "ü", "🦀", "data: x", '{"text":"if "}', " two ", "0", "", "say [DONE]"]
WORDS += ["one\u2028line", "one\x85line", "one\rline", "\ttab\t"]


def draw_stream(rng: Random) -> tuple[Chunks]:
    """Draw some events in bytes, cut at random places."""
    end = rng.choice((b"\n", b"\n", b"\r\n"))
    lines = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.2:
            lines += [b": still here"] + [b""] * rng.randint(0, 1)
        parts = 1 + (rng.random() < 0.2)
        for _ in range(parts):
            space = b" " if rng.random() < 0.8 else b""
            word = rng.choice(WORDS) if parts == 1 else rng.choice((*WORDS, DONE))
            lines.append(b"data:" + space + word.encode())
        lines.append(b"")
    if rng.random() < 0.4:
        lines += [b"data: [DONE]", b""] + ([b"data: more", b""] if rng.random() < 0.3 else [])
    stream = end.join(lines) + end
    return (cut(stream, rng),)


def cut(stream: bytes, rng: Random) -> Chunks:
    """Cut the stream into pieces, some of one byte."""
    places = sorted({rng.randint(1, len(stream)) for _ in range(rng.randint(0, 6))} | {len(stream)})
    return [stream[begin:end] for begin, end in zip([0, *places], places, strict=False)]


STREAMS: list[tuple[Chunks]] = [
    ([b"data: a\n\n"],),
    ([b"data: a\n\ndata: b\n\n"],),
    ([b"data: a\n", b"\n"],),
    ([b"data: a\n\ndata:", b" b\n\n"],),
    (["data: ü\n\n".encode()[:7], "data: ü\n\n".encode()[7:]],),
    ([b"data: a\r\n\r\n"],),
    ([b"database: x\ndata: a\n\n"],),
    ([b"data: say [DONE]\n\ndata: a\n\n"],),
    (["data: one\u2028line\n\n".encode()],),
    ([b"data: a\r\n\r", b"\n"],),
    ([b"data:a\n\n"],),
    ([b"data:  a \n\n"],),
    ([b": wait\n\ndata: a\n\n"],),
    ([b"data: a\ndata: b\n\n"],),
    ([b"event: x\ndata: a\n\n"],),
    ([b"data: a\n: wait\ndata: b\n\n"],),
    ([b"data: [DONE]\n\n"],),
    ([b"data: a\n\ndata: [DONE]\n\n", b"data: b\n\n"],),
    ([b"\n\ndata: a\n\n"],),
    ([b"data: [DONE]\ndata: a\n\n", b"data: b\n\n"],),
    ([b"data: a\ndata: [DONE]\n\ndata: b\n\n"],),
    ([b"data: one\rline\n\n"],),
    ([b"data:\ta\n\n"],),
    ([b"data: a\r\r\n\n"],),
    *(([b"data: a\n" + line + b"\n\n"],) for line in (b" data: b", b"data : b", b"DATA: b", b"data")),
    *(([b"data:" + text + b"\n\ndata: a\n\n"],) for text in (b"  [DONE]", b"[DONE] ", b"[done]", b"\xef\xbb\xbfb")),
    ([b"data: a\n\n\r\ndata: b\r\n\n"],),
    ([b"data: " + b"long " * 400, b"text\n", b"\n"],),
]
