"""walk_tasks: which thread serves which (sequence, KV head), behind a slider over the number of threads."""

from __future__ import annotations

from collections.abc import Sequence as List

from roseinfer.arguments import counted
from roseinfer.display.grid import Grid
from roseinfer.display.shapes import WIDTH, Cell, Frame, Panel

Task = tuple[int, int]  # sequence, KV head
LABELS = 80  # pixels


def walk_tasks(lengths: List[int], num_kv_heads: int, threads: List[int]) -> Grid:
    """One row per thread, one box per task as wide as the tokens that it walks over, in the colour of its sequence; the
    same tasks numbered sequence by sequence, and head by head as in stage 09.

    lengths: cached tokens of each sequence. threads: how many there are, a frame each.
    """
    orders = {order: numbered(lengths, num_kv_heads, order) for order in ("sequence by sequence", "head by head")}
    frames, facts = [], [f"{len(lengths)} sequences with {list(lengths)} cached tokens, {num_kv_heads} KV heads"]
    for count in threads:
        runs_of = {order: shares(tasks, count) for order, tasks in orders.items()}
        scale = max(_tokens(run, lengths) for runs in runs_of.values() for run in runs)  # one for both pictures
        panels = []
        for order, runs in runs_of.items():
            longest = max(_tokens(run, lengths) for run in runs)
            wait = f"{longest:,} tokens, {longest * count / (sum(lengths) * num_kv_heads):.2f} times an even share"
            facts.append(f"{counted(count, 'thread')}, numbered {order}: the busiest walks over {wait}")
            cells = [cell for thread, run in enumerate(runs) for cell in _boxes(thread, run, lengths)]
            title, labels = f"Numbered {order}: all threads wait for {wait}.", [f"thread {i}" for i in range(count)]
            panels.append(Panel(cells, title, labels, cell=((WIDTH - LABELS) / max(scale, 1), 20)))
        frames.append(Frame(panels, counted(count, "thread")))
    return Grid(frames, "\n".join(facts), "more threads")


def numbered(lengths: List[int], num_kv_heads: int, order: str) -> list[Task]:
    """The tasks in the order of their numbers."""
    seqs, heads = range(len(lengths)), range(num_kv_heads)
    if order == "head by head":
        return [(seq, head) for head in heads for seq in seqs]
    return [(seq, head) for seq in seqs for head in heads]


def shares(tasks: List[Task], threads: int) -> list[list[Task]]:
    """Each thread's, as Numba's prange deals them out: runs, the first `tasks % threads` of them one longer."""
    least, longer = divmod(len(tasks), threads)
    starts = [i * least + min(i, longer) for i in range(threads + 1)]
    return [list(tasks[start:stop]) for start, stop in zip(starts, starts[1:], strict=False)]


def _tokens(run: List[Task], lengths: List[int]) -> int:
    return sum(lengths[seq] for seq, _ in run)


def _boxes(thread: int, run: List[Task], lengths: List[int]) -> list[Cell]:
    boxes, start = [], 0
    for seq, head in run:
        tooltip = f"sequence {seq}, head {head}: {lengths[seq]} tokens"
        boxes.append(Cell(thread, start, colour=seq, width=lengths[seq], tooltip=tooltip))
        start += lengths[seq]
    return boxes
