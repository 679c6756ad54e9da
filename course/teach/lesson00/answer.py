"""ask: a question, and the answer as a model writes it, token by token."""

from __future__ import annotations

import textwrap
from time import perf_counter

from course.display.board import CHAR, Board, Cell, Frame, Panel
from roseinfer.arguments import counted
from roseinfer.display.figure import PALETTE
from roseinfer.llm.llm import LLM
from roseinfer.sampling_params import SamplingParams

FRAME_MS = 80
LETTER, LINE_HEIGHT = 13, 20  # of the texts, in pixels
COLUMNS = 100  # of a line


def ask(llm: LLM, question: str, *, max_tokens: int = 200) -> Board:
    """Show a model's greedy answer to a question as it is written, slowed down to be watched.

    Args:
        llm: with a chat template.
        question: of one turn, without any before it.
        max_tokens: of the answer, if it does not end before.

    Raises NoChatTemplate (a ValueError) for a model without one.
    """
    prompt = llm.chat_template.render([{"role": "user", "content": question}])
    prompt_ids = llm.prompt_ids(prompt, add_special_tokens=False)
    began, ends_ms, counts, texts = perf_counter(), [], [], []
    for output in llm.stream(prompt_ids, SamplingParams(max_tokens=max_tokens, temperature=0)):
        ends_ms.append(1e3 * (perf_counter() - began))
        counts.append(len(output.outputs[0].token_ids))  # with drafts, a step may give several tokens
        texts.append(output.outputs[0].text)
    speed = f"{counted(counts[-1], 'token')} in {ends_ms[-1]:,.0f} ms ({1e3 * counts[-1] / ends_ms[-1]:,.0f} tok/s)"
    asked = _lines(question, "you", PALETTE[0])
    frames = [
        Frame([asked, _lines(text, f"model: token {number} after {end:,.0f} ms")])
        for text, number, end in zip(texts, counts, ends_ms, strict=True)
    ]
    frames[-1] = Frame([asked, _lines(texts[-1], f"model: {speed}")])
    whole, last = f"{question}\n{texts[-1]}", len(frames) - 1
    return Board(frames, whole, label="token", shown=last, frame_ms=FRAME_MS, alt=f"{texts[-1]} {speed}")


def _lines(text: str, title: str, colour: str = "") -> Panel:
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, COLUMNS) or [""]]
    indents = [len(line) - len(line.lstrip()) for line in lines]  # Vega leaves out spaces at the beginning of a text
    cells = [
        Cell(row, indent, line.lstrip(), colour, outline="none", strength=0.2, width=COLUMNS - indent)
        for row, (line, indent) in enumerate(zip(lines, indents, strict=True))
    ]
    return Panel(cells, title, cell=(LETTER * CHAR, LINE_HEIGHT), align="left", size=LETTER)
