"""recorded: what `make gpu-report` measured on some GPU and left in data/runs and data/traces."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.posts.data import results
from roseinfer.display.text_table import Column, TextTable
from roseinfer.display.view import View, card
from roseinfer.paths import DATA

if TYPE_CHECKING:
    from roseinfer.display.measured import MachineResult
    from roseinfer.profiling import Trace
    from roseinfer.stage import Stage

ATTENTION = ("store_kernel", "attend_kernel", "combine_kernel")  # of the engine: K and V written, read, parts merged


@dataclass(frozen=True, repr=False)
class Recorded(View):
    """Recorded results. text/plain says only what is asked for: a reader's own report changes no recorded outputs."""

    what: str
    cards: list[str]
    where: str = "the GPU reports in data/runs"
    nothing: str = "shown here once there is a GPU report (lesson 00)"

    def __repr__(self) -> str:
        return f"from {self.where}, where there are any: {self.what}"

    def to_html(self) -> str:
        nothing = f"<p class='rose-muted'>{self.what}: {self.nothing}</p>"
        return "".join(card(content) for content in self.cards or [nothing])


def recorded(model: str = "random:gpt2", batch_size: int | None = None, folder: Path = DATA) -> Recorded:
    """Show the recorded ladders of that model, and of that batch size if one is given, each under its label.

    Raises ValueError for a file of that name in runs/ that is no ladder.
    """
    from roseinfer.bench.ladder_result import LadderResult

    cards = [
        label(ladder.device, ladder.commit) + ladder._repr_mimebundle_()["text/html"]
        for _, ladder in results(LadderResult, folder, "runs/*/ladder*.json", "roseinfer ladder")
        if ladder.arguments["model"] == model and batch_size in (None, ladder.arguments["batch_size"])
    ]
    return Recorded(f"ladders of {model}" + (f", {batch_size} sequences" if batch_size else ""), cards)


def recorded_kernels(folder: Path = DATA) -> Recorded:
    """Show the recorded times of the paged attention kernel, a table each. Raises ValueError as `recorded` does."""
    from roseinfer.bench.kernel_times import KernelTimes

    found = results(KernelTimes, folder, "runs/*/kernels*.json", "roseinfer bench kernels")
    cards = [label(times.device, times.commit) + times.table().to_html() for _, times in found]
    return Recorded("times of the paged attention kernel", cards)


def recorded_steps(model: str = "random:gpt2", folder: Path = DATA) -> Recorded:
    """Show the recorded decode steps of the engine: their launches and times, and what reading alone would take.

    Each step is a CUDA graph's replay; `roseinfer bench step` times it. Raises ValueError as `recorded` does.
    """
    found = results(partial(_steps_card, model), folder, "runs/*/step*.json", "roseinfer bench step")
    return Recorded(f"decode steps of {model}", [card for _, card in found if card])


def _steps_card(
    model: str,
    *,
    arguments: dict[str, Any],
    device: str,
    commit: str | None,
    copy_bytes_per_s: float,
    rows: list[dict[str, Any]],
    note: str = "",
    **_: Any,
) -> str:
    """Write a run's table; "" where it has no step of the model, or was measured on a CPU, whose kernels have no time.

    note: what a file says that was not written by the command alone.
    """
    of_model = [row for row in rows if row["model"] == model and row["kernels"][0]["seconds"]]
    if not of_model:
        return ""
    shown = [row | {"kv_seconds": row["kv_bytes"] / copy_bytes_per_s} for row in of_model]
    table = TextTable.of_rows(STEP_COLUMNS, shown, missing="kernels overlap").html(f"decode steps of {model}")
    told = f"{model} in {arguments['dtype']}, {arguments['context']} cached tokens a sequence; attention: all layers."
    return label(device, commit) + table + paragraph(told) + paragraph(note)


def _attention(row: dict[str, Any]) -> float | None:
    """Return the seconds of a step's attention; None where kernels overlap, since each then counts its wait as well."""
    if sum(kernel["seconds"] for kernel in row["kernels"]) > row["seconds"]:
        return None
    return sum(kernel["seconds"] for kernel in row["kernels"] if kernel["name"] in ATTENTION)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}"


STEP_COLUMNS = (
    Column("sequences", of="batch_size"),
    Column("launches", of="launches"),
    Column("step, µs", _us, of="seconds"),
    Column("reading its bytes, µs", _us, of="bytes_seconds"),
    Column("attention, µs", _us, True, of=_attention),
    Column("reading K and V, µs", _us, of="kv_seconds"),
)


def recorded_executors(folder: Path = DATA) -> Recorded:
    """Show recorded steps in turn and one step behind, then what the host does in a step. Raises as `recorded`."""
    from roseinfer.bench.executors import ExecutorResult
    from roseinfer.bench.host import HostResult

    kinds: dict[str, type[MachineResult]] = {"executors": ExecutorResult, "host": HostResult}
    cards = [
        label(result.device, result.commit)
        + TextTable.of_rows(result.COLUMNS, result.rows).html(name)
        + "".join(map(paragraph, result.notes()))
        for name, kind in kinds.items()
        for _, result in results(kind, folder, f"runs/*/{name}*.json", f"roseinfer bench {name}")
    ]
    return Recorded("steps in turn and one step behind", cards)


def paragraph(text: str) -> str:
    return f"<p class='rose-muted'>{html.escape(text)}</p>" if text else ""


def recorded_online(folder: Path = DATA) -> Recorded:
    """Chart throughput against latency over budgets, for each recorded run of `roseinfer bench online`.

    The runs are in data/online and data/runs; those with one budget are left out. Raises ValueError as `recorded` does.
    """
    from roseinfer.bench.online import OnlineResult, latency_chart

    cards = [
        f"<p><b>Recorded on {html.escape(result.device)}</b>, not measured here: {html.escape(path.stem)}</p>"
        + latency_chart(result).to_html()
        for pattern in ("online/*.json", "runs/*/online*.json")
        for path, result in results(OnlineResult, folder, pattern, "roseinfer bench online")
        if len(result.arguments["budgets"]) > 1
    ]
    nothing = "shown here once there is a run (<code>roseinfer bench online --output data/online/NAME.json</code>)"
    return Recorded("throughput and latency over token budgets", cards, "the runs in data/online", nothing)


def recorded_trace(stage: type[Stage] | str, folder: Path = DATA) -> Trace | None:
    """Load the newest recorded trace of a stage (its class or name); None if there is none."""
    from roseinfer.profiling import Trace

    name = stage if isinstance(stage, str) else stage.name
    found = [Trace.load(path) for path in folder.glob(f"traces/*/{name}/*.json.gz")]
    return max(found, key=lambda trace: trace.metadata["recorded_at"], default=None)


def label(device: str, commit: str | None) -> str:
    from roseinfer.bench.provenance import short_commit

    where = f"{html.escape(device)}, commit {html.escape(short_commit(commit))}"
    return f"<p><b>Recorded on {where}</b>, not measured here</p>"
