"""recorded: what `make gpu-report` measured on some GPU and left in data/runs and data/traces."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.display.view import View, card
from roseinfer.paths import DATA

if TYPE_CHECKING:
    from roseinfer.profiling import Trace
    from roseinfer.stage import Stage


@dataclass(frozen=True, repr=False)
class Recorded(View):
    """text/plain says what is asked for, and no more: a reader's own report changes no notebook's recorded outputs."""

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
    """The recorded ladders of that model, and of that batch size if one is given, each under its label.

    Raises ValueError for a file in runs/ that is no report.
    """
    from roseinfer.bench import LadderResult

    reports = gpu_reports(folder)
    cards = [
        label(report) + LadderResult(**ladder)._repr_mimebundle_()["text/html"]
        for report in reports
        for ladder in report["ladders"]
        if ladder["arguments"]["model"] == model and batch_size in (None, ladder["arguments"]["batch_size"])
    ]
    return Recorded(f"ladders of {model}" + (f", {batch_size} sequences" if batch_size else ""), cards)


def recorded_kernels(folder: Path = DATA) -> Recorded:
    """Times of the paged attention kernel in the recorded reports, a table each. Raises as `recorded`."""
    from roseinfer.bench.gpu_report import kernel_table

    timed = [report for report in gpu_reports(folder) if report["kernel_times"]]
    cards = [label(report) + kernel_table(report["kernel_times"]).to_html() for report in timed]
    return Recorded("times of the paged attention kernel", cards)


def recorded_online(folder: Path = DATA) -> Recorded:
    """Throughput against latency over budgets, of the runs of `roseinfer bench online` in data/online, each a chart.
    Runs with one budget are left out.

    Raises ValueError for a file there that is no such run.
    """
    from roseinfer.bench.online import OnlineResult, latency_chart

    cards = []
    for path in sorted(folder.glob("online/*.json")):
        try:
            result = OnlineResult(**{"samples": []} | json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no result as `roseinfer bench online` writes it: {error}") from error
        if len(result.arguments["budgets"]) == 1:
            continue
        what = f"<p><b>Recorded on {html.escape(result.device)}</b>, not measured here: {html.escape(path.stem)}</p>"
        cards.append(what + latency_chart(result).to_html())
    nothing = "shown here once there is a run (<code>roseinfer bench online --output data/online/NAME.json</code>)"
    return Recorded("throughput and latency over token budgets", cards, "the runs in data/online", nothing)


def recorded_trace(stage: type[Stage] | str, folder: Path = DATA) -> Trace | None:
    """The newest recorded trace of a stage (its class or name), None if there is none."""
    from roseinfer.profiling import Trace

    name = stage if isinstance(stage, str) else stage.name
    found = [Trace.load(path) for path in folder.glob(f"traces/*/{name}.json.gz")]
    return max(found, key=lambda trace: trace.metadata["recorded_at"], default=None)


def gpu_reports(folder: Path = DATA) -> list[dict[str, Any]]:
    """All reports in `folder`/runs, by GPU, the oldest first. Raises ValueError for a file that is none."""
    return [_read(path) for path in sorted(folder.glob("runs/*/*.json"))]


def label(report: dict[str, Any]) -> str:
    from roseinfer.bench.provenance import short_commit

    commit = short_commit(report["commit"])
    return (
        f"<p><b>Recorded on {html.escape(report['device'])}, {report['date'][:10]}, commit "
        f"{html.escape(commit)}</b>, not measured here</p>"
    )


def _read(path: Path) -> dict[str, Any]:
    from roseinfer.bench.gpu_report import FORMAT, KIND

    where = f"data/{path.relative_to(path.parents[2]).as_posix()}"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(report, dict) or (report.get("kind"), report.get("format")) != (KIND, FORMAT):
        raise ValueError(f"{where} is no report as `make gpu-report` writes it (kind {KIND!r}, format {FORMAT})")
    return report
