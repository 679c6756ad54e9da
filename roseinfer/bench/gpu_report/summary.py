"""A report for a terminal: the verdicts in a line each, the times in tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..ladder_result import LadderResult
from ..provenance import short_commit


def print_summary(data: dict[str, Any], console: Console) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items() if version)
    _print(console, f"{data['device']}, {data['date'][:10]}, commit {short_commit(data['commit'])}\n{versions}\n")
    for ladder in data["ladders"]:
        _print(console, ladder["arguments"]["model"])
        console.print(LadderResult(**ladder).table())
    console.print(machine_table(data["machine"]))
    console.print(kernel_table(data["kernel_times"]))
    for line in verdicts(data):
        _print(console, line)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)  # a reason may have brackets


def verdicts(data: dict[str, Any]) -> Iterable[str]:
    """How many checks there were, how many held, and everything that did not."""
    for dtype in data["arguments"]["dtypes"]:
        rows = [row for row in data["kernel_checks"] if row["dtype"] == dtype]
        errors = [row["max_error"] for row in rows if row["max_error"] is not None]
        largest = f", largest error {max(errors):.1e}" if errors else ""
        yield f"kernel checks, {dtype}: {_held(rows, 'ok')}{largest}"
    yield f"greedy tokens equal to the reference, float32: {_held(data['contract'], 'equal')} (model, stage) pairs"
    nbytes = sum(row["bytes"] for row in data["traces"])
    yield f"traces: {len(data['traces'])} stages, {nbytes:,} bytes"
    yield "seconds: " + ", ".join(f"{part.replace('_', ' ')} {s:.0f}" for part, s in data["seconds"].items())
    yield from (f"note: {note}" for note in data["notes"])
    yield from (f"FAILED: {failure}" for failure in data["failures"])


def _held(rows: list[dict[str, Any]], good: str) -> str:
    return f"{sum(row['verdict'] == good for row in rows)} of {len(rows)}"


def machine_table(rows: list[dict[str, Any]]) -> Table:
    return _table(
        "This machine",
        ("dtype", "read GB/s", "matrix product TFLOP/s"),
        [(row["dtype"], f"{row['read_bytes_per_s'] / 1e9:,.0f}", f"{row['flops_per_s'] / 1e12:,.1f}") for row in rows],
    )


def kernel_table(rows: list[dict[str, Any]]) -> Table:
    return _table(
        "Paged attention, one launch",
        ("dtype", "batch", "cached tokens", "heads", "KV heads", "head size", "us", "KV GB/s", "of read"),
        [
            (
                row["dtype"], str(row["batch_size"]), f"{row['context_len']:,}",
                str(row["num_kv_heads"] * row["group"]), str(row["num_kv_heads"]), str(row["head_dim"]),
                f"{1e6 * row['seconds']:,.1f}", f"{row['bytes_per_s'] / 1e9:,.1f}", f"{row['bandwidth_share']:.1%}",
            )
            for row in rows
        ],
    )  # fmt: skip


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="left" if column == "dtype" else "right")
    for row in rows:
        table.add_row(*row)
    return table
