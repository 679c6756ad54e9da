"""compare_shapes: where a change pays and where it loses, one decode step at a time; and sql, a query as a table."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from torch import Tensor

from roseinfer.bench.contenders import StageContender
from roseinfer.bench.interleave import interleaved
from roseinfer.bench.ladder import check_stages
from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import TRANSFERS, Trace, bytes_copied, stage_ops, trace_once
from roseinfer.profiling.clock import seconds_of
from roseinfer.sampling import sample
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..views.rows_table import table
from . import freed_memory
from .progress_bar import progress_bar

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]  # a module that is not there has no type


ROUNDS = 2  # of a comparison; each makes its stages again


def sql(trace: Trace, query: str, exact: abc.Sequence[str] = ("name", "n")) -> Table:
    """Run a query over the table `slice` of a trace. Columns that `exact` does not name are shown, not compared."""
    frame = trace.sql(query)
    exact = [column for column in frame.columns if column in exact]
    live = [column for column in frame.columns if column not in exact]
    return Table(frame, exact=exact, live=live, note=trace.caption, query=query)


def compare_shapes(
    stages: abc.Sequence[type[Stage]], model: Model, shapes: dict[str, list[int]], steps: int = 12
) -> Table:
    """Run a decode step of each stage on each batch: exact counts, and the median time of `steps` steps.

    Args:
        stages: classes; the first one is what the others are compared with.
        model: from load_model.
        shapes: {name of a batch: prompt lengths, one for each sequence}.
        steps: how many are timed, in turns of half. One stage at a time is in memory, as it may copy the weights.

    The column speed compares a stage with the first one on the same batch (above 1: faster). The column page faults has
    the pages that the kernel mapped in the median step, where the system counts them; a step maps pages when it
    allocates memory that the C library had given back.

    Raises ValueError for what is no list of Stage classes with names of their own.
    """
    check_stages(stages)
    rows: list[dict[str, Any]] = []
    own_steps = -(-steps // ROUNDS)
    with progress_bar("decode steps", total=len(shapes) * len(stages) * ROUNDS * (own_steps + 2)) as done:
        for name, lengths in shapes.items():
            counted, timed = _on_one_batch(stages, model, lengths, own_steps, done)
            medians = {stage: median(seconds for seconds, _ in steps) for stage, steps in timed.items()}
            for stage, seconds in medians.items():
                rows.append({"batch": name, "stage": stage})  # what a narrow page cuts off are the counts
                rows[-1] |= {"step ms": 1e3 * seconds, "speed": medians[stages[0].name] / seconds}
                rows[-1] |= {"cached tokens": sum(lengths), **counted[stage]}
                rows[-1]["page faults"] = round(median(faults for _, faults in timed[stage]))
    if not any(row["transfers"] for row in rows):  # on a CPU, where the page is wide enough without it
        rows = [{name: value for name, value in row.items() if name != "transfers"} for row in rows]
    return table(
        rows,
        [name for name in ("step ms", "speed", "transfers", "page faults") if name in rows[0]],
        note=f"step ms: median of {ROUNDS * own_steps} steps, in {ROUNDS} turns; bytes: of the second step, with one "
        f"more token each; speed: against {stages[0].name} on the same batch; transfers: copies between host and "
        "device; page faults: pages that the system had to map in the step, which takes time",
        formats={"step ms": "{:.2f}", "speed": "×{:.2f}"}
        | dict.fromkeys(["bytes copied", "bytes zeroed", "page faults"], "{:,}"),
    )


def _on_one_batch(
    stages: abc.Sequence[type[Stage]], model: Model, lengths: list[int], steps: int, done: Callable[[], None]
) -> tuple[dict[str, dict[str, int]], dict[str, list[tuple[float, int]]]]:
    """Return the counts of each stage, and seconds and page faults of its steps in all rounds."""
    turns = interleaved({stage.name: partial(_turn, stage, model, lengths, steps, done) for stage in stages}, ROUNDS)
    counted = {name: own[0][0] for name, own in turns.items()}
    return counted, {name: [step for _, timed in own for step in timed] for name, own in turns.items()}


def _turn(
    stage_class: type[Stage], model: Model, lengths: list[int], steps: int, done: Callable[[], None]
) -> tuple[dict[str, int], list[tuple[float, int]]]:
    """Return the counts of a stage that ends with this call, and seconds and page faults of each step.

    The steps that are counted warm the others up.
    """
    freed_memory.give_back()  # or the copy of the weights that this stage makes comes on top of the last one's
    batch = _running(stage_class, model, lengths, steps)
    counted = _counts(*batch, done)
    return counted, [_timed(partial(decode_step, *batch), done) for _ in range(steps)]


def _running(stage_class: type[Stage], model: Model, lengths: list[int], steps: int) -> tuple[Stage, list[Sequence]]:
    """Prefill the batch, ready to decode up to steps + 2 more tokens for each sequence."""
    prompts = [[1 + i % 7] * n for i, n in enumerate(lengths)]
    return StageContender(stage_class, model, prompts, steps + 3).at_step(0)


def _counts(stage: Stage, seqs: list[Sequence], done: Callable[[], None]) -> dict[str, int]:
    """Count the stage's own ops in the first step, and the bytes of the second.

    One whole stage.decode, as the ladder counts: choosing the tokens is not included.
    """
    counted: list[Any] = []
    logits: list[Tensor] = []
    for count in (trace_once, bytes_copied):
        counted.append(count(lambda: logits.append(stage.decode(seqs))))
        for seq, token in zip(seqs, sample(logits.pop(), seqs), strict=True):
            seq.append(token)
        done()
    trace, moved = counted
    ops = stage_ops(trace)
    return {
        "copies": ops["aten::copy_"],
        "cats": ops["aten::cat"],
        "selects": ops["aten::select"],
        "transfers": ops[TRANSFERS],
        "bytes copied": moved.copied,
        "bytes zeroed": moved.filled,
    }


def _timed(decode: Callable[[], object], done: Callable[[], None]) -> tuple[float, int]:
    """Return the seconds of a step, and the page faults in it."""
    faults = page_faults()
    seconds = seconds_of(decode)  # sampling reads the tokens back, so a GPU has finished at its end
    faults = page_faults() - faults
    done()
    return seconds, faults


def page_faults() -> int:
    """Return the pages mapped for this process so far without reading a disk; 0 on a system without a count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0
