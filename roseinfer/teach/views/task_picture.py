"""walk_tasks: which thread serves which (sequence, KV head), behind a slider over the number of threads."""

from __future__ import annotations

from collections.abc import Sequence as List

from roseinfer.arguments import counted
from roseinfer.display.figure import PALETTE

from .stepper import OUTLINE, Stepper, faint

Task = tuple[int, int]  # sequence, KV head

ROW = "display: flex; align-items: center; margin: 2px 0"
LABEL = "flex: 0 0 5em; font-size: 12px"
BAR = "flex: 1 1 auto; display: flex; min-width: 0"
BOX = f"flex: 0 1 auto; box-sizing: border-box; min-width: 0; height: 16px; border: {OUTLINE}"


def walk_tasks(lengths: List[int], num_kv_heads: int, threads: List[int]) -> Stepper:
    """A row a thread, a box a task as wide as the tokens that it walks over, in the colour of its sequence; the same
    tasks numbered sequence by sequence, and head by head as in stage 09.

    lengths: cached tokens of each sequence. threads: how many there are, a frame each.
    """
    orders = {order: numbered(lengths, num_kv_heads, order) for order in ("sequence by sequence", "head by head")}
    frames, facts = [], [f"{len(lengths)} sequences with {list(lengths)} cached tokens, {num_kv_heads} KV heads"]
    for count in threads:
        parts = [f"<p><b>{counted(count, 'thread')}</b></p>"]
        runs_of = {order: shares(tasks, count) for order, tasks in orders.items()}
        scale = max(_tokens(run, lengths) for runs in runs_of.values() for run in runs)  # one for both pictures
        for order, runs in runs_of.items():
            longest = max(_tokens(run, lengths) for run in runs)
            wait = f"{longest:,} tokens, {longest * count / (sum(lengths) * num_kv_heads):.2f} times an even share"
            facts.append(f"{counted(count, 'thread')}, numbered {order}: the busiest walks over {wait}")
            rows = "".join(_row(i, run, lengths, scale) for i, run in enumerate(runs))
            parts.append(f"<p>Numbered <b>{order}</b>: everybody waits for {wait}.</p>{rows}")
        frames.append("".join(parts))
    return Stepper(frames, "more threads", "\n".join(facts))


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


def _row(thread: int, run: List[Task], lengths: List[int], scale: int) -> str:
    boxes = "".join(
        f'<span title="sequence {seq}, head {head}: {lengths[seq]} tokens" style="{BOX}; '
        f"width: {100 * lengths[seq] / max(scale, 1):.3f}%; "
        f'background: {faint(PALETTE[seq % len(PALETTE)])}"></span>'
        for seq, head in run
    )
    label = f'<span style="{LABEL}">thread {thread}</span>'
    return f'<div style="{ROW}">{label}<div style="{BAR}">{boxes}</div></div>'
