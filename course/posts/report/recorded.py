"""What `make gpu-report` recorded on GPUs: a post's command, beside the post's figures, or what the post is about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roseinfer.bench.executors import ExecutorResult
from roseinfer.bench.provenance import short_commit
from roseinfer.display.text_table import TextTable
from roseinfer.paths import DATA

from ..data import post_table, results
from .content import Exact, Grid

COMMAND = "python -m roseinfer.benchmark_scheduler"
# What the summary of a run calls the figures that the post's table has under other names.
NAMES_000 = {
    "Decode time": "Elapsed (decode/run)",
    "Total time": "Elapsed (total)",
    "Throughput(completion,total)": "Throughput (completion)",
}


def recorded_grids(post: str, folder: Path = DATA) -> dict[str, Grid]:
    """Return the tables of what is recorded for a post, by their titles; none where nothing is.

    Raises ValueError for a file in runs/ that has a benchmark's name and is none of its results.
    """
    if post == "003":
        return _executors(folder)
    if post in ("000", "004"):
        return _command(post, folder)
    return {}


def _command(post: str, folder: Path) -> dict[str, Grid]:
    posted = _posted(post)
    found = [run for _, run in results(dict[str, Any], folder, f"runs/*/post-{post}*.json", COMMAND)]
    return {
        f"{run['stage']} in {run['model']['dtype']} on {run['device']}, commit {short_commit(run['commit'])}": Grid(
            ("figure", "unit", "post", "recorded"), [*_figures(run, posted)]
        )
        for run in found
    }


def _posted(post: str) -> dict[str, float]:
    """Return the post's figures after its change, by the names that a run's summary has."""
    if post == "000":
        column = post_table(post, "throughput").set_index("metric")["after"]
        return {ours: float(column[theirs]) for ours, theirs in NAMES_000.items()}
    return post_table(post, "summary").set_index("metric")["after_p50"].to_dict()


def _figures(run: dict[str, Any], posted: dict[str, float]) -> Iterator[list[Exact | None]]:
    for of_mode in run["modes"].values():
        for stat in of_mode["summary"]:
            if stat["metric"] in posted:
                yield [stat["metric"], stat["unit"], posted[stat["metric"]], round(stat["p50"], 4)]


def _executors(folder: Path) -> dict[str, Grid]:
    grids = {}
    for _, result in results(ExecutorResult, folder, "runs/*/executors*.json", "roseinfer bench executors"):
        table = TextTable.of_rows(result.COLUMNS, result.rows)
        model = f"{result.arguments['model']} in {result.arguments['dtype']}"
        grids[f"{model} on {result.device}, commit {short_commit(result.commit)}"] = Grid(table.names, table.rows)
    return grids
