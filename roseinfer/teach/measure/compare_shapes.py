"""compare_shapes: where a change pays and where it loses, one decode step at a time; and sql, a query as a table."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from statistics import median
from time import perf_counter

from roseinfer.display.table import Table
from roseinfer.generate import begin, decode_step
from roseinfer.models import Model
from roseinfer.profiling import MODEL_OPS, Trace, bytes_copied, count_ops
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .progress_bar import progress_bar


def sql(trace: Trace, query: str, exact: List[str] = ("name", "n")) -> Table:
    """A query over the table `slice` of a trace. Columns that `exact` does not name are shown, but not compared."""
    frame = trace.sql(query)
    exact = [column for column in frame.columns if column in exact]
    live = [column for column in frame.columns if column not in exact]
    return Table(frame, exact=exact, live=live, note=trace.caption, query=query)


def compare_shapes(
    stages: List[type[Stage]], model: Model, shapes: dict[str, list[int]], steps: int = 12, block_size: int = 64
) -> Table:
    """One decode step of each stage on each batch: exact counts, and the median time of `steps` interleaved steps.

    shapes: a name -> prompt lengths, one a sequence. The last column is each stage's time against the first stage's
    on the same batch (above 1: faster).
    """
    import pandas as pd

    rows = []
    with progress_bar("decode steps", total=len(shapes) * len(stages) * (steps + 2)) as done:
        for name, lengths in shapes.items():
            runs = [_batch(stage, model, lengths, steps, block_size) for stage in stages]
            counted = [_counts(stage, seqs, done) for stage, seqs in runs]
            times = _interleaved(runs, steps, done)
            for stage, counts, seconds in zip(stages, counted, times, strict=True):
                rows.append({"batch": name, "stage": stage.name, "cached tokens": sum(lengths), **counts})
                rows[-1] |= {"step ms": 1e3 * median(seconds), "speed": median(times[0]) / median(seconds)}
    exact = ["batch", "stage", "cached tokens", "copies", "cats", "selects", "bytes copied", "bytes zeroed"]
    return Table(
        pd.DataFrame(rows),
        exact=exact,
        live=["step ms", "speed"],
        note=f"step ms: median of {steps} interleaved steps; speed: against {stages[0].name} on the same batch",
        formats={"step ms": "{:.2f}", "speed": "×{:.2f}", "bytes copied": "{:,}", "bytes zeroed": "{:,}"},
    )


def _batch(
    stage_class: type[Stage], model: Model, lengths: list[int], steps: int, block_size: int
) -> tuple[Stage, list[Sequence]]:
    blocks = sum(-(-(n + steps + 3) // block_size) for n in lengths)
    stage = stage_class(model, num_blocks=blocks, block_size=block_size, max_num_seqs=len(lengths))
    return stage, begin(stage, [[1 + i % 7] * n for i, n in enumerate(lengths)], SamplingParams(max_tokens=steps + 3))


def _counts(stage: Stage, seqs: list[Sequence], done: Callable[[], None]) -> dict[str, int]:
    """The counts of the first step, without what the model's own ops start, and the bytes of the second."""
    ops = count_ops(lambda: decode_step(stage, seqs), outside=MODEL_OPS)
    done()
    moved = bytes_copied(lambda: decode_step(stage, seqs))
    done()
    return {
        "copies": ops["aten::copy_"], "cats": ops["aten::cat"], "selects": ops["aten::select"],
        "bytes copied": moved.copied, "bytes zeroed": moved.filled,
    }  # fmt: skip


def _interleaved(runs: list[tuple[Stage, list[Sequence]]], steps: int, done: Callable[[], None]) -> list[list[float]]:
    """Seconds of each step, a list a run; A B A B, so that a slow moment of the machine hits all alike."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(steps):
        for seconds, (stage, seqs) in zip(times, runs, strict=True):
            start = perf_counter()
            decode_step(stage, seqs)  # sampling reads the tokens back, so a GPU has finished here
            seconds.append(perf_counter() - start)
            done()
    return times
