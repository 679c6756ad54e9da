"""show_graph: what a RecordedGraph plays back, as code that reads well, each name in the colour of where it comes from.

torch.fx writes full names and, after each line, frees what is not needed any more. Both are left out here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass

from roseinfer.display.view import View, card
from roseinfer.graphs.recorded import RecordedGraph

FREES = re.compile(r";\s+.*")
SIGNATURE = re.compile(r"def forward\(self, (.*)\):")
RESULT = re.compile(r"^(\w+) = ")
WORD = re.compile(r"\b[A-Za-z_]\w*\b(?!\()")  # a value's name, not a function's
# Half-transparent, of Okabe and Ito's colours: they read on Lab's light and dark pages.
KINDS = {
    "input": ("rgba(230, 159, 0, 0.35)", "written before each replay"),
    "pool": ("rgba(0, 158, 115, 0.28)", "the pool and buffers"),
    "weight": ("rgba(0, 114, 178, 0.3)", "weights"),
}


@dataclass(frozen=True, repr=False)
class RecordedCode(View):
    """Code of a recorded graph. text/plain only counts: another PyTorch or another CPU has other operations."""

    num_operations: int
    num_outside: dict[str, int]
    lines: tuple[str, ...]
    kinds: dict[str, str]

    def __repr__(self) -> str:
        reads = ", ".join(f"{n} of kind {kind}" for kind, n in self.num_outside.items())
        return f"recorded: {self.num_operations} operations; tensors from outside: {reads}"

    def to_html(self) -> str:
        code = "\n".join(WORD.sub(self._marked, html.escape(line, quote=False)) for line in self.lines)
        legend = " &nbsp; ".join(_mark(colour, what) for colour, what in KINDS.values())
        style = "overflow-x: auto; font-family: monospace; font-size: 12px; line-height: 1.5"
        legend = f'<p class="rose-muted">{legend} &nbsp; unmarked: made in the step</p>'
        return card(f'{legend}<pre style="{style}">{code}</pre>')

    def _marked(self, word: re.Match[str]) -> str:
        kind = self.kinds.get(word[0])
        return _mark(KINDS[kind][0], word[0]) if kind else word[0]


def show_graph(graph: RecordedGraph, kind_of: Callable[[str], str], first: int, last: int) -> RecordedCode:
    """Show the first `first` and the last `last` lines of the recorded code.

    kind_of: maps the name of a tensor from outside to "input", "pool" or "weight".
    """
    signature = SIGNATURE.search(graph.code)
    outside = signature[1].split(", ") if signature else []
    kinds = {name: kind_of(name) for name in outside}
    lines = _readable(graph.code)
    left_out = len(lines) - first - last
    if left_out > 0:
        lines = [*lines[:first], f"...  # {left_out} lines", *lines[len(lines) - last :]]
    counted = {kind: list(kinds.values()).count(kind) for kind in KINDS}
    return RecordedCode(len(graph.operations), counted, tuple(lines), kinds)


def _readable(code: str) -> list[str]:
    lines = [FREES.sub("", line.strip()) for line in code.split("):", 1)[-1].splitlines()]
    lines = [re.sub(r"torch\.ops\.\w+\.(\w+)\.\w+", r"\1", line) for line in lines if line]
    lines = [re.sub(r"\broseinfer_kernels_\w+?_numba_(?=\w+\()", "", line) for line in lines]
    names: dict[str, str] = {}
    for line in lines:
        if result := RESULT.match(line):
            names.setdefault(result[1], f"x{len(names) + 1}")
    return [WORD.sub(lambda word: names.get(word[0], word[0]), line) for line in lines]


def _mark(colour: str, text: str) -> str:
    return f'<span style="background-color: {colour}">{text}</span>'
