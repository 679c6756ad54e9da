"""walk_layer: one layer of GPT-2, an operation per step, each tensor as wide as it has numbers per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from course.display.board import Board, Cell, Frame, Line, Panel
from roseinfer.arguments import require_count
from roseinfer.display.chart import INK
from roseinfer.models import ModelConfig

DRAWN, ROW = 600, 30  # pixels: the widest tensor, and a row
Q, K, V, HIDDEN, WIDE = 0, 1, 2, 4, 5  # colours
NEW, OLD = 0.55, 0.25  # strength
LEGEND = (
    Cell(0, 0, "the hidden state", HIDDEN, strength=NEW),
    Cell(0, 0, "queries", Q, strength=NEW),
    Cell(0, 0, "keys", K, strength=NEW),
    Cell(0, 0, "values", V, strength=NEW),
    Cell(0, 0, "inside the MLP", WIDE, strength=NEW),
    Cell(0, 0, "computed in this step", outline=INK),
)


class Part(NamedTuple):
    """A piece of a tensor: its numbers per token, its colour and what stands in it."""

    width: int
    colour: int
    text: str = ""


class Operation(NamedTuple):
    """An operation: its name, the tensor it gives, a sentence on it. adds: the row of the tensor to which it adds."""

    name: str
    gives: list[Part]
    says: str
    adds: int | None = None


def walk_layer(config: ModelConfig, num_tokens: int) -> Board:
    """Draw the operations of one layer on [num_tokens, C] as a slider's steps.

    The wider a box, the more numbers per token its tensor has; its rows are the tokens. Raises ValueError for a model
    that is not a GPT-2, whose layer has other operations, and for a num_tokens below 1.
    """
    if config.architecture != "gpt2":
        raise ValueError(f"config must be that of a GPT-2, got architecture={config.architecture!r}")
    require_count("num_tokens", num_tokens, at_least=1)
    operations = _operations(config, num_tokens)
    frames = [
        Frame([_panel(operations, config, step)], f"{number}: {operation.name}", operation.says)
        for step, operation in enumerate(operations)
        for number in [f"operation {step}" if step else "the input"]
    ]
    return Board(
        frames,
        f"one layer on {num_tokens} tokens, operation by operation:\n"
        + "\n".join(f"  {each.name}: {_shape_text(each, num_tokens)}" for each in operations),
        "operation",
        legend=LEGEND,
    )


def _operations(c: ModelConfig, num_tokens: int) -> list[Operation]:
    width, heads, dim, wide = c.hidden_size, c.num_heads, c.head_dim, c.intermediate_size
    rows = f"[{num_tokens}, {width}]"

    def hidden() -> list[Part]:
        return [Part(width, HIDDEN, rows)]

    qkv = [Part(heads * dim, colour, f"{name} [{num_tokens}, {heads * dim}]") for colour, name in enumerate("QKV")]
    split = [Part(dim, colour, str(head)) for colour in (Q, K, V) for head in range(heads)]
    inside = [Part(wide, WIDE, f"[{num_tokens}, {wide}]")]
    return [
        Operation("hidden state", hidden(), f"One row of {width} numbers for each of {num_tokens} tokens."),
        Operation("norm", hidden(), "Each row by itself: to mean 0 and variance 1, then times weights, plus biases."),
        Operation(
            "Q, K, V",
            qkv,
            f"One product with a matrix [{width}, {3 * heads * dim}] gives a query, a key and a value per token.",
        ),
        Operation(
            "split into heads",
            split,
            f"A view: {heads} heads with {dim} numbers each. Nothing is computed.",
        ),
        Operation(
            "attention",
            [Part(dim, V, str(head)) for head in range(heads)],
            "Each head mixes the values of the tokens. This is the only operation in which tokens meet.",
        ),
        Operation("output projection", hidden(), f"A product with [{heads * dim}, {width}] mixes the heads."),
        Operation("add", hidden(), "The residual: the result is added to the hidden state from the top.", adds=0),
        Operation("norm", hidden(), "The second norm of the layer, with weights of its own."),
        Operation("MLP up", inside, f"A product with [{width}, {wide}]: more numbers per token."),
        Operation("GELU", inside, "A curve, applied to each number: large ones stay, very negative ones become 0."),
        Operation("MLP down", hidden(), f"A product with [{wide}, {width}]: back to the width of the hidden state."),
        Operation("add", hidden(), "The second residual. This hidden state is the input of the next layer.", adds=6),
    ]


def _shape_text(operation: Operation, num_tokens: int) -> str:
    widths = [part.width for part in operation.gives]
    if len(widths) == 1:
        return f"[{num_tokens}, {widths[0]}]"
    return f"{len(widths)} x [{num_tokens}, {widths[0]}]"


def _panel(operations: list[Operation], config: ModelConfig, step: int) -> Panel:
    """Draw the operations up to this step; later ones are dashed and empty."""
    widest = max(sum(part.width for part in each.gives) for each in operations)
    cells = [cell for row, each in enumerate(operations) for cell in _boxes(row, each, step)]
    lines = [line for row, each in enumerate(operations[: step + 1]) for line in _residual(row, each, config, widest)]
    labels = [each.name for each in operations]
    return Panel(cells, rows=labels, cell=(DRAWN / widest, ROW), lines=lines)


def _boxes(row: int, operation: Operation, step: int) -> Iterator[Cell]:
    start = 0
    for part in operation.gives:
        box = Cell(row, start, width=part.width, height=0.9, dashed=True)
        if row <= step:
            strength, outline = (NEW, INK) if row == step else (OLD, "")
            box = replace(box, text=part.text, colour=part.colour, strength=strength, outline=outline, dashed=False)
        yield box
        start += part.width


def _residual(row: int, operation: Operation, config: ModelConfig, widest: int) -> Iterator[Line]:
    """Draw a line from the right edge of the tensor that is added, past everything between, to this one."""
    if operation.adds is None:
        return
    edge, beyond = config.hidden_size, widest * 1.03
    top, low = operation.adds + (0.45 if operation.adds == 0 else 0.65), row + 0.3
    yield Line((top, edge), (top, beyond), HIDDEN)
    yield Line((top, beyond), (low, beyond), HIDDEN)
    yield Line((low, beyond), (low, edge), HIDDEN, arrow=True)
