"""A report for a terminal: the verdicts in a line each, the times in tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from roseinfer.display.cells import Cells, Column
from roseinfer.display.table import Table

from ..executors import executor_cells
from ..ladder_result import LadderResult
from ..provenance import short_commit


def summary(data: dict[str, Any], width: int | None = None) -> str:
    """width: of the terminal; wider tables are folded."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items() if version)
    parts = [f"{data['device']}, {data['date'][:10]}, commit {short_commit(data['commit'])}\n{versions}"]
    parts += [f"{row['arguments']['model']}\n{LadderResult(**row).text(width)}" for row in data["ladders"]]
    parts.append(f"This machine\n{machine_cells(data['machine']).text(width)}")
    if data["launches"]:
        parts.append(f"A decode step of the engine\n{launch_cells(data['launches']).text(width)}")
    if data["overlap"]:
        parts.append(f"The engine's executors, tokens a second\n{executor_cells(data['overlap']).text(width)}")
    if data["kernel_times"]:
        table = kernel_table(data["kernel_times"])
        parts.append(f"{table.title}\n{table.cells(list(table.df)).text(width)}")
    return "\n\n".join([*parts, "\n".join(verdicts(data))])


def verdicts(data: dict[str, Any]) -> Iterable[str]:
    """How many checks there were, how many held, and everything that did not."""
    for part, dtype in product(("kernel_checks", "flat_checks"), data["arguments"]["dtypes"]):
        rows = [row for row in data[part] if row["dtype"] == dtype]
        errors = [row["max_error"] for row in rows if row["max_error"] is not None]
        largest = f", largest error {max(errors):.1e}" if errors else ""
        yield f"{part.replace('_', ' ')}, {dtype}: {_held(rows, 'ok')}{largest}"
    for dtype in data["arguments"]["dtypes"]:
        rows, good = [row for row in data["tokens"] if row["dtype"] == dtype], "equal" if dtype == "float32" else "near"
        what = "equal to the reference's" if good == "equal" else "that rounding explains"
        yield f"greedy tokens {what}, {dtype}: {_held(rows, good)} (model, stage) pairs"
    ties = sum(row["near_ties"] for row in data["graph_checks"])
    yield f"decode with graphs as without, float32: {_held(data['graph_checks'], 'ok')} steps, {ties} near ties"
    nbytes = sum(row["bytes"] for row in data["traces"])
    yield f"traces: {len(data['traces'])} stages, {nbytes:,} bytes"
    yield "seconds: " + ", ".join(f"{part.replace('_', ' ')} {s:.0f}" for part, s in data["seconds"].items())
    yield from (f"note: {note}" for note in data["notes"])
    yield from (f"FAILED: {failure}" for failure in data["failures"])


def _held(rows: list[dict[str, Any]], good: str) -> str:
    return f"{sum(row['verdict'] == good for row in rows)} of {len(rows)}"


def machine_cells(rows: list[dict[str, Any]]) -> Cells:
    columns = ["dtype", Column("read GB/s", "{:,.0f}".format), Column("matrix product TFLOP/s", "{:,.1f}".format)]
    return Cells.of(columns, [(row["dtype"], row["read_bytes_per_s"] / 1e9, row["flops_per_s"] / 1e12) for row in rows])


def launch_cells(rows: list[dict[str, Any]]) -> Cells:
    counts = ["batch_size", "launches", "kernels"]
    times = [Column(name, lambda s: f"{1e6 * s:,.0f}") for name in ("host us", "step us")]
    shown = ["stage", *counts, "host_seconds", "step_seconds"]
    return Cells.of(["engine", *map(Column, counts), *times], [[row[name] for name in shown] for row in rows])


def kernel_table(rows: list[dict[str, Any]]) -> Table:
    """kernel_times of a report, at least one; bandwidth is that of the cached keys and values alone."""
    import pandas as pd

    shapes = {
        "dtype": "dtype", "batch_size": "batch", "context_len": "cached tokens", "num_kv_heads": "KV heads",
        "group": "query heads on each", "head_dim": "head size", "kv_bytes": "KV bytes",
    }  # fmt: skip
    df = pd.DataFrame(rows)
    df["us"], df["KV GB/s"] = 1e6 * df["seconds"], df["bytes_per_s"] / 1e9
    df = df.rename(columns=shapes | {"bandwidth_share": "of read bandwidth"})
    times = {"us": "{:,.1f}", "KV GB/s": "{:,.1f}", "of read bandwidth": "{:.1%}"}
    return Table(
        df[[*shapes.values(), *times]],
        exact=list(shapes.values()),
        live=list(times),
        title="Paged attention, one launch",
        formats=times | {"cached tokens": "{:,}", "KV bytes": "{:,}"},
        bars=["of read bandwidth"],
    )
