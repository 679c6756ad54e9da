"""walk_tasks: which thread serves which (sequence, KV head), with a slider over the number of threads."""

from __future__ import annotations

from collections.abc import Sequence

from course.display.board import WIDTH, Board, Cell, Frame, Panel
from roseinfer.arguments import counted

Task = tuple[int, int, int]  # sequence, KV head, cached tokens


def walk_tasks(lengths: Sequence[int], num_kv_heads: int, threads: Sequence[int], split: int | None = None) -> Board:
    """Draw one row per thread, and one box per task, as wide as the tokens that it walks over. Colours are sequences.

    One panel numbers the tasks sequence by sequence, another head by head, as stage 09 does. split: adds a panel in
    which a sequence with more cached tokens than that is several tasks per head, of at most that many tokens each, and
    threads get runs of about equally many tokens, not tasks.
    lengths: cached tokens of each sequence. threads: numbers of threads, a frame for each.
    """
    orders = {order: numbered(lengths, num_kv_heads, order) for order in ("sequence by sequence", "head by head")}
    by_tokens = f"head by head, split after {split} tokens, shared out by tokens"
    if split is not None:
        orders[by_tokens] = in_pieces(orders["head by head"], split)
    frames, facts = [], [f"{len(lengths)} sequences with {list(lengths)} cached tokens, {num_kv_heads} KV heads"]
    for count in threads:
        runs_of = {
            order: (shares_by_tokens if order == by_tokens else shares)(tasks, count) for order, tasks in orders.items()
        }
        scale = max(_tokens(run) for runs in runs_of.values() for run in runs)  # one for all panels
        panels = []
        for order, runs in runs_of.items():
            longest = max(_tokens(run) for run in runs)
            wait = f"{longest:,} tokens, {longest * count / (sum(lengths) * num_kv_heads):.2f} times an even share"
            facts.append(f"{counted(count, 'thread')}, numbered {order}: the busiest walks over {wait}")
            cells = [cell for thread, run in enumerate(runs) for cell in _boxes(thread, run)]
            title, labels = f"Numbered {order}: all threads wait for {wait}.", [f"thread {i}" for i in range(count)]
            panels.append(Panel(cells, title, labels, cell=(WIDTH, 20), room=(scale, count)))
        frames.append(Frame(panels, counted(count, "thread")))
    return Board(frames, "\n".join(facts), "more threads", shown=len(frames) - 1)


def numbered(lengths: Sequence[int], num_kv_heads: int, order: str) -> list[Task]:
    """List the tasks in the order of their numbers. order: "head by head"; anything else is sequence by sequence."""
    seqs, heads = range(len(lengths)), range(num_kv_heads)
    if order == "head by head":
        return [(seq, head, lengths[seq]) for head in heads for seq in seqs]
    return [(seq, head, lengths[seq]) for seq in seqs for head in heads]


def in_pieces(tasks: Sequence[Task], most: int) -> list[Task]:
    """Cut each task into pieces of at most `most` tokens, in the same order."""
    return [
        (seq, head, min(most, tokens - start))
        for seq, head, tokens in tasks
        for start in range(0, max(tokens, 1), most)
    ]


def shares(tasks: Sequence[Task], threads: int) -> list[list[Task]]:
    """Share out tasks as Numba's prange does: a run per thread, the first `tasks % threads` of them longer by one."""
    least, longer = divmod(len(tasks), threads)
    starts = [i * least + min(i, longer) for i in range(threads + 1)]
    return [list(tasks[start:stop]) for start, stop in zip(starts, starts[1:], strict=False)]


def shares_by_tokens(tasks: Sequence[Task], threads: int) -> list[list[Task]]:
    """Share out tasks in runs of about equally many tokens. The middle of a task decides which thread gets it."""
    runs: list[list[Task]] = [[] for _ in range(threads)]
    total, before = max(_tokens(tasks), 1), 0
    for task in tasks:
        runs[min(int((before + task[2] / 2) * threads / total), threads - 1)].append(task)
        before += task[2]
    return runs


def _tokens(run: Sequence[Task]) -> int:
    return sum(tokens for _, _, tokens in run)


def _boxes(thread: int, run: Sequence[Task]) -> list[Cell]:
    boxes, start = [], 0
    for seq, head, tokens in run:
        tooltip = f"sequence {seq}, head {head}: {tokens} tokens"
        boxes.append(Cell(thread, start, colour=seq, width=tokens, tooltip=tooltip))
        start += tokens
    return boxes
