"""recorded: what `make gpu-report` measured on some GPU and left in data/runs and data/traces."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course.posts.data import results
from roseinfer.display.view import View, card
from roseinfer.paths import DATA

if TYPE_CHECKING:
    from roseinfer.bench.kernel_times import KernelTimes
    from roseinfer.bench.ladder_result import LadderResult
    from roseinfer.profiling import Trace
    from roseinfer.stage import Stage


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
        label(ladder) + ladder._repr_mimebundle_()["text/html"]
        for _, ladder in results(LadderResult, folder, "runs/*/ladder*.json", "roseinfer ladder")
        if ladder.arguments["model"] == model and batch_size in (None, ladder.arguments["batch_size"])
    ]
    return Recorded(f"ladders of {model}" + (f", {batch_size} sequences" if batch_size else ""), cards)


def recorded_kernels(folder: Path = DATA) -> Recorded:
    """Show the recorded times of the paged attention kernel, a table each. Raises ValueError as `recorded` does."""
    from roseinfer.bench.kernel_times import KernelTimes

    found = results(KernelTimes, folder, "runs/*/kernels*.json", "roseinfer bench kernels")
    return Recorded(
        "times of the paged attention kernel", [label(times) + times.table().to_html() for _, times in found]
    )


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


def label(result: LadderResult | KernelTimes) -> str:
    from roseinfer.bench.provenance import short_commit

    commit = html.escape(short_commit(result.commit))
    return f"<p><b>Recorded on {html.escape(result.device)}, commit {commit}</b>, not measured here</p>"
