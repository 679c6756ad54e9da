"""walk_prefix_tree: the blocks of a prefix cache as a tree of texts, behind a slider over the steps of a run."""

from __future__ import annotations

import html
from collections.abc import Sequence as List
from typing import Any

from tokenizers import Tokenizer

from roseinfer.display.figure import INK, PALETTE, PAPER

from ..measure.tree_run import Node, Text, TreeRun
from .stepper import Stepper

WIDTH, ROW = 860, 46  # pixels
BOX_HEIGHT, GAP = 36, 14
CHAR = 6.05  # pixels of a letter
HELD, IDLE, OPEN = PALETTE[0], "#888888", PALETTE[1]
MOST_COLUMNS = 6

Place = tuple[Text, int | None]


class PrefixTree(Stepper):
    """A frame a step. Where nothing can run, the picture is the frame `shown`."""

    def __init__(self, frames: List[str], facts: str, svgs: List[str], shown: int) -> None:
        super().__init__(frames, "step", facts)
        self.svg = svgs[shown]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = {**super()._repr_mimebundle_(include, exclude), "image/png": self.png}
        return bundle, {"image/png": {"alt": f"The tree of blocks of a run, a line a step. {self.facts}"}}

    @property
    def png(self) -> bytes:
        import vl_convert

        return vl_convert.svg_to_png(on_paper(self.svg), scale=1.5)


def walk_prefix_tree(run: TreeRun, tokenizer: Tokenizer, names: List[str], shown: int | None = None) -> PrefixTree:
    """A box a block, at the end of the text before it. names: of the requests. shown: the frame of the picture, None
    for the last one.

    text/plain has a line a step: tokens computed and found, blocks evicted, held, idle and free.
    Raises ValueError for a name too few or too many, and a text of more blocks than have room.
    """
    if len(names) != len(run.run.requests):
        raise ValueError(f"names must be {len(run.run.requests)}, one for each request, got {len(names)}")
    rows = _rows(run)
    most = max((len(text) - 1) // run.block_size + 1 for text, _ in rows)
    if most > MOST_COLUMNS:
        raise ValueError(f"run must have texts of at most {MOST_COLUMNS} blocks to be drawn, got one of {most}")
    lines = [_line(run, step, names) for step in range(len(run.nodes))]
    svgs = [_svg(run, step, rows, tokenizer, names, most) for step in range(len(run.nodes))]
    frames = [
        f"<p><b>step {step}</b> · {html.escape(line)}</p>{svg}{_legend()}"
        for step, (line, svg) in enumerate(zip(lines, svgs, strict=True))
    ]
    facts = "\n".join(f"step {step}: {line}" for step, line in enumerate(lines))
    return PrefixTree(frames, facts, svgs, len(svgs) - 1 if shown is None else shown)


def on_paper(svg: str) -> str:
    """The picture with a ground and an ink of its own."""
    head, _, rest = svg.partition(">")
    head = head.replace("currentColor", INK).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
    return f'{head}><rect width="100%" height="100%" fill="{PAPER}"/>{rest.replace("currentColor", INK)}'


def _line(run: TreeRun, step: int, names: List[str]) -> str:
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
    """The row of each block that there ever is: a text goes on in the row of the one before it, a second way to go on
    gets a row of its own, below."""
    seen = dict.fromkeys((node.text, node.twin) for nodes in run.nodes for node in nodes)
    size = run.block_size
    children: dict[Text, list[Place]] = {}
    for text, twin in seen:
        before = text[: (len(text) - 1) // size * size]
        children.setdefault(before, []).append((text, twin))
    rows: dict[Place, int] = {}

    def place(text: Text, row: int) -> int:
        """The first row below a text and all that goes on from it."""
        for child in children.get(text, []):
            rows[child] = row
            row = row + 1 if child[1] is not None else max(row + 1, place(child[0], row))
        return row

    place((), 0)
    return rows


def _svg(run: TreeRun, step: int, rows: dict[Place, int], tokenizer: Tokenizer, names: List[str], columns: int) -> str:
    width = min(190.0, (WIDTH - GAP) / columns - GAP)
    size = run.block_size
    now = {(node.text, node.twin): node for node in run.nodes[step]}
    earlier = {(node.text, node.twin) for nodes in run.nodes[:step] for node in nodes if node.is_found}
    shapes = []
    for place, row in rows.items():
        if place not in now and place not in earlier:
            continue
        text, column = place[0], (len(place[0]) - 1) // size
        x, y = 4 + column * (width + GAP), 4 + row * ROW
        above = rows.get((text[: column * size], None), row)
        shapes.append(_edge(x, y, 4 + above * ROW, column))
        node = now.get(place)
        words = _words(tokenizer, text[column * size :][: node.num_tokens if node else size])
        shapes.append(_box(node, x, y, width, words, names, size))
    height = 4 + (1 + max(rows.values())) * ROW
    label = f'role="img" aria-label="the tree of blocks after step {step}"'
    head = f'<svg width="{WIDTH}" height="{height}" {label} fill="currentColor" font-family="monospace">'
    return f"{head}{''.join(shapes)}</svg>"


def _edge(x: float, y: float, above: float, column: int) -> str:
    if not column:
        return ""
    middle, turn = BOX_HEIGHT / 2, x - GAP / 2
    path = f"M {x - GAP} {above + middle} H {turn} V {y + middle} H {x}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'


def _box(
    node: Node | None, x: float, y: float, width: float, words: str, names: List[str], block_size: int
) -> str:
    if node is None:
        state, style, faded = "evicted", f'fill="none" stroke="{IDLE}" stroke-dasharray="2 3"', 0.45
    elif node.place_in_line:
        state, faded = f"block {node.block} idle, no. {node.place_in_line}", 0.8
        style = f'fill="{IDLE}" fill-opacity="0.2" stroke="{IDLE}"'
    else:
        who = ",".join(names[holder] for holder in node.holders)
        colour, dashes = (HELD, "") if node.is_found else (OPEN, ' stroke-dasharray="5 3"')
        style = f'fill="{colour}" fill-opacity="0.35" stroke="{colour}"{dashes} stroke-width="1.5"'
        state, faded = f"block {node.block} ×{len(node.holders)}: {who}", 1.0
        if not node.is_found:
            state += f", {node.num_tokens}/{block_size}"
    room = int((width - 8) / CHAR)
    rect = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="4" {style}/>'
    lines = "".join(
        f'<text x="{x + 4:.1f}" y="{y + dy}" font-size="10" fill-opacity="{faded}"{weight}>{_cut(line, room)}</text>'
        for line, dy, weight in ((words, 14, ""), (state, 29, ' font-weight="bold"'))
    )
    return f"<g><title>{html.escape(words)}: {html.escape(state)}</title>{rect}{lines}</g>"


def _words(tokenizer: Tokenizer, token_ids: Text) -> str:
    return tokenizer.decode(list(token_ids)).replace("\n", "⏎").replace(" ", "␣")


def _cut(line: str, room: int) -> str:
    return html.escape(line if len(line) <= room else line[: room - 1] + "…")


def _legend() -> str:
    entries = [
        (f"{HELD}59; border: 1px solid {HELD}", "held, and found by its key"),
        (f"{OPEN}59; border: 1px dashed {OPEN}", "held, not found: not full, or a second copy"),
        (f"{IDLE}33; border: 1px solid {IDLE}", "idle: still found; no. 1 is evicted first"),
        (f"transparent; border: 1px dashed {IDLE}", "evicted"),
    ]
    spans = (
        f'<span style="background: {style}; border-radius: 3px; padding: 0 6px; font-size: 12px">{text}</span>'
        for style, text in entries
    )
    return f'<div style="display: flex; flex-wrap: wrap; gap: 4px">{"".join(spans)}</div>'
