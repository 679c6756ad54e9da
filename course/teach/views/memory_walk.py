"""walk_memory: a cursor over the keys of one layer, a cache line per step, in several layouts at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from course.display.board import WIDTH, Board, Cell, Frame, Panel, table
from roseinfer.arguments import each_once, require_count, require_known
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE

from .memory_reads import LAYOUTS, LINE, Batch, Counts, Layout, Read, count, reads_of

MOST_LINES = 48  # of a layout, so that a line is as wide as a number
UNREAD, READ = 0.15, 0.6  # strength of keys
TWICE = PALETTE[3]
COLUMNS = ("", "bytes used", "read, not used", "reads of a line", "lines touched", "jumps")
LEGEND = (
    Cell(0, 0, "key of sequence 0, not read yet", 0, strength=UNREAD),
    Cell(0, 0, "read and used", 0, strength=READ),
    Cell(0, 0, "no token: padding, or a free slot", hatched=True),
    Cell(0, 0, "the line read now", outline=INK),
    Cell(0, 0, "a line read again", TWICE, strength=0.4),
)


def walk_memory(
    lengths: Sequence[int],
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    bytes_per_value: int,
    layouts: Sequence[str] = tuple(LAYOUTS),
) -> Board:
    """Show what one decode step reads of K in one layer, in several layouts at once, a cache line of each per step.

    Each layout is a strip in the order of memory: above, the keys of its tokens; below, its cache lines of 64 bytes
    with how often each was read.
    lengths: cached tokens of each sequence. layouts: of "token-major", "head-major". A task, one KV head of one
    sequence, reads each of its lines once. A jump is a read of a line that is not the next one.
    Raises ValueError for a layout of more than 48 lines, for which there is no room.
    """
    for length in lengths:
        require_count("lengths", length, 1)
    if not lengths:
        raise ValueError("lengths must hold at least one sequence, got none")
    sizes = {"num_kv_heads": num_kv_heads, "block_size": block_size, "head_dim": head_dim}
    for name, size in (sizes | {"bytes_per_value": bytes_per_value}).items():
        require_count(name, size, 1)
    for name in each_once("layouts", layouts):
        require_known("layouts", name, LAYOUTS)
    batch = Batch(lengths, num_kv_heads, block_size, head_dim, bytes_per_value)
    made = [LAYOUTS[name](batch) for name in layouts]
    for layout in made:
        num_lines = _num_lines(layout, batch.row_bytes)
        if num_lines > MOST_LINES:
            raise ValueError(f"{layout.name} must have at most {MOST_LINES} cache lines to be drawn, got {num_lines}")
    reads = [list(reads_of(layout, batch.row_bytes)) for layout in made]
    steps = max(map(len, reads))
    frames = [_frame(step, made, reads, batch) for step in range(steps + 1)]
    return Board(frames, _facts(batch, made, reads), "lines read,", shown=steps, legend=LEGEND)


def _num_lines(layout: Layout, row_bytes: int) -> int:
    return -(-len(layout.keys) * row_bytes // LINE)


def _facts(batch: Batch, layouts: list[Layout], reads: list[list[Read]]) -> str:
    lines = [
        f"Sequences of {list(batch.lengths)} cached tokens, {batch.num_kv_heads} KV heads, keys of {batch.row_bytes} "
        f"bytes, cache lines of {LINE}"
    ]
    for layout, own in zip(layouts, reads, strict=True):
        used, not_used, times, touched, jumps = count(own)
        lines.append(
            f"{layout.name} {layout.shape}: {used:,} bytes used, {not_used:,} read and not used; {times} reads of "
            f"{touched} cache lines, {jumps} jumps"
        )
    return "\n".join(lines)


def _frame(step: int, layouts: list[Layout], reads: list[list[Read]], batch: Batch) -> Frame:
    """Draw all layouts after `step` steps; a layout with fewer lines is done by then."""
    most = max(_num_lines(layout, batch.row_bytes) for layout in layouts)
    strips = [_strip(layout, own, step, batch.row_bytes, most) for layout, own in zip(layouts, reads, strict=True)]
    counts = [count(own[:step]) for own in reads]
    says = (
        f"Boxes: keys of {batch.row_bytes} bytes, with the token and its KV head; below, cache lines of {LINE} bytes "
        "and how often each was read."
    )
    return Frame([*strips, _counters(layouts, counts)], f"step {step}: one cache line per step in each layout", says)


def _counters(layouts: list[Layout], counts: list[Counts]) -> Panel:
    rows = [[layout.name, *(f"{number:,}" for number in own)] for layout, own in zip(layouts, counts, strict=True)]
    return table("Counted so far", COLUMNS, rows)


def _strip(layout: Layout, reads: list[Read], step: int, row_bytes: int, most: int) -> Panel:
    seen = reads[:step]
    last = seen[-1] if seen and step <= len(reads) else None
    now = f"reads {last.task}" if last else "done" if seen else "nothing read yet"
    times = Counter(read.line for read in seen)
    done = {place for read in seen for place in read.places}
    wide = row_bytes / LINE  # columns are cache lines
    cells = [
        Cell(
            0, place * wide, key.token if key.token is not None else "", key.seq if key.token is not None else "",
            note=f"h{key.head}" if key.token is not None else "", hatched=key.token is None, width=wide, height=1.5,
            strength=READ if place in done else UNREAD,
        )
        for place, key in enumerate(layout.keys)
    ]  # fmt: skip
    for line in range(_num_lines(layout, row_bytes)):
        outline = INK if last and line == last.line else ""
        colour = TWICE if times[line] > 1 else ""
        cells.append(Cell(1.55, line, times[line] or "", colour, outline=outline, strength=0.4, height=0.75))
    title = f"{layout.name} {layout.shape}: {now}"
    return Panel(cells, title, cell=(WIDTH, 22), room=(most, 1), size=10)
