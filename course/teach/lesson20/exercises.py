"""Checkers of lesson 20: server-sent events, the quality of a load, an open loop, and admission."""

from __future__ import annotations

from typing import Any

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import register
from ..exercises.wrong import Wrong
from .admission_rule import ADMISSIONS
from .events import ANOTHER_STREAM, MISTAKES, STREAMS, Chunks, Rules, Texts, draw_stream, mixed_up, texts_of
from .open_loop_checks import OPEN_LOOP
from .quality_checks import QUALITIES


def texts_by_chunk(answer: Any, chunks: Chunks) -> Texts:
    """Collect what a reader gives after each chunk, while another reader is in the middle of another stream."""
    another = answer()
    another.feed(ANOTHER_STREAM)
    reader = answer()
    found = []
    for chunk in chunks:
        if (texts := reader.feed(chunk)) is None:
            raise Wrong("feed returned None: return the list of texts, which may be empty")
        found.append(list(texts))
    return found


EVENTS = Comparison(
    [*STREAMS, *draw(draw_stream, 150)],
    Expected(
        texts_of(Rules()),
        {
            **{why: texts_of(rules) for why, rules in MISTAKES.items()},
            "another reader reads another stream: keep what was read in the object, not in its class": mixed_up,
        },
    ),
    inputs("chunks"),
    texts_by_chunk,
)
register("20.1", EVENTS)
register("20.2", QUALITIES)
register("20.3", OPEN_LOOP)
register("20.4", ADMISSIONS)
