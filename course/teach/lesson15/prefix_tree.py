"""walk_prefix_tree: the blocks of a prefix cache as a tree of texts, behind a slider over the steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer

from course.display.board import EDGE, WIDTH, Board, Cell, Frame, Line, Panel
from roseinfer.display.figure import PALETTE

from .tree_run import Node, Text, TreeRun

ROW, BOX_HEIGHT, GAP, WIDEST = 46, 38, 14, 190  # pixels
HELD, IDLE, OPEN = PALETTE[0], EDGE, PALETTE[1]
MOST_COLUMNS = 6
LEGEND = (
    Cell(0, 0, "held, and found by its key", HELD, outline=HELD, strength=0.35),
    Cell(0, 0, "held, not found: not full, or a second copy", OPEN, outline=OPEN, dashed=True, strength=0.35),
    Cell(0, 0, "idle: still found; no. 1 is evicted first", IDLE, strength=0.2),
    Cell(0, 0, "evicted", dashed=True),
)

Place = tuple[Text, int | None]


def walk_prefix_tree(run: TreeRun, tokenizer: Tokenizer, names: Sequence[str], shown: int | None = None) -> Board:
    """Draw the tree of blocks after each step, one box per block, at the end of the text before it.

    names: of the requests. shown: the frame of the picture, None for the last one.
    text/plain has one line per step: tokens computed and found, blocks evicted, held, idle and free.
    Raises ValueError for a name too few or too many, and a text of more blocks than have room.
    """
    if len(names) != len(run.run.requests):
        raise ValueError(f"names must be {len(run.run.requests)}, one for each request, got {len(names)}")
    rows = _rows(run)
    most = max((len(text) - 1) // run.block_size + 1 for text, _ in rows)
    if most > MOST_COLUMNS:
        raise ValueError(f"run must have texts of at most {MOST_COLUMNS} blocks to be drawn, got one of {most}")
    lines = [_line(run, step, names) for step in range(len(run.nodes))]
    frames = [
        Frame([_tree(run, step, rows, tokenizer, names, most)], f"step {step}", line) for step, line in enumerate(lines)
    ]
    return Board(
        frames, "\n".join(f"step {step}: {line}" for step, line in enumerate(lines)), shown=shown, legend=LEGEND
    )


def _line(run: TreeRun, step: int, names: Sequence[str]) -> str:
    rows = run.run.steps[step].rows
    first = {row.request for row in rows if not any(step > n for n, _ in run.run.rows_of(row.request))}
    found = [f"{names[row.request]} {row.num_cached}" for row in rows if row.num_cached and row.request in first]
    computed = ", ".join(f"{names[row.request]} {row.num_new}" for row in rows)
    evicted = run.evicted(step)
    held = sum(bool(node.holders) for node in run.nodes[step])
    idle = sum(node.place_in_line > 0 for node in run.nodes[step])
    parts = [f"computes {computed}"]
    parts += [f"found {', '.join(found)}"] if found else []
    parts += [f"evicted block {', '.join(map(str, evicted))}"] if evicted else []
    return " · ".join([*parts, f"blocks: {held} held, {idle} idle, {run.num_free[step]} free"])


def _rows(run: TreeRun) -> dict[Place, int]:
    """Find the row of each block of the run: a text continues in its row, a second continuation gets a row below."""
    seen = dict.fromkeys((node.text, node.twin) for nodes in run.nodes for node in nodes)
    size = run.block_size
    children: dict[Text, list[Place]] = {}
    for text, twin in seen:
        before = text[: (len(text) - 1) // size * size]
        children.setdefault(before, []).append((text, twin))
    rows: dict[Place, int] = {}

    def place(text: Text, row: int) -> int:
        """Place all that continues a text, from `row` on, and return the first free row below it."""
        for child in children.get(text, []):
            rows[child] = row
            row = row + 1 if child[1] is not None else max(row + 1, place(child[0], row))
        return row

    place((), 0)
    return rows


def _tree(
    run: TreeRun, step: int, rows: dict[Place, int], tokenizer: Tokenizer, names: Sequence[str], most: int
) -> Panel:
    box = 1 - GAP / min(WIDEST, WIDTH / most)  # in cells
    size = run.block_size
    now = {(node.text, node.twin): node for node in run.nodes[step]}
    earlier = {(node.text, node.twin) for nodes in run.nodes[:step] for node in nodes if node.is_found}
    cells, edges = [], []
    for place, row in rows.items():
        if place not in now and place not in earlier:
            continue
        text, column = place[0], (len(place[0]) - 1) // size
        node = now.get(place)
        words = _words(tokenizer, text[column * size :][: node.num_tokens if node else size])
        look = _look(node, words, names, size)
        cells.append(Cell(row, column, words, width=box, height=BOX_HEIGHT / ROW, **look))
        if column:
            edges += _edge(rows.get((text[: column * size], None), row), row, column, (1 - box) / 2)
    return Panel(cells, cell=(WIDEST, ROW), align="left", size=11, room=(most, 1), lines=edges)


def _edge(above: int, row: int, column: int, half_gap: float) -> list[Line]:
    """Draw lines from the right of the box in row `above` to the left of the one in `row` and `column`."""
    middle, turn = BOX_HEIGHT / ROW / 2, column - half_gap
    corners = (above, turn - half_gap), (above, turn), (row, turn), (row, column)
    places = [(y + middle, x) for y, x in corners]
    return [Line(start, end) for start, end in pairwise(places) if start != end]


def _look(node: Node | None, words: str, names: Sequence[str], block_size: int) -> dict[str, Any]:
    if node is None:
        return {"note": "evicted", "dashed": True, "tooltip": f"{words}: evicted"}
    if node.place_in_line:
        state = f"block {node.block} idle, no. {node.place_in_line}"
        return {"note": state, "colour": IDLE, "strength": 0.2, "tooltip": f"{words}: {state}"}
    state = f"block {node.block} ×{len(node.holders)}: {','.join(names[holder] for holder in node.holders)}"
    state += "" if node.is_found else f", {node.num_tokens}/{block_size}"
    colour = HELD if node.is_found else OPEN
    look = {"colour": colour, "outline": colour, "dashed": not node.is_found, "strength": 0.35}
    return {"note": state, "tooltip": f"{words}: {state}", **look}


def _words(tokenizer: Tokenizer, token_ids: Text) -> str:
    return tokenizer.decode(list(token_ids)).replace("\n", "⏎").replace(" ", "␣")
