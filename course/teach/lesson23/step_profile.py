"""profile_step and recorded_step: the kernels of one replayed decode step, measured on this GPU or on another one."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from roseinfer.arguments import counted
from roseinfer.bench.decode_step import profiled, short_name
from roseinfer.bench.provenance import short_commit
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.hardware import device_name
from roseinfer.models import load_model
from roseinfer.paths import DATA
from roseinfer.profiling import decode_floor, measure_machine
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch
from ..measure.recorded import Recorded

FILES = "runs/*/step*.json"  # as `roseinfer bench step --output` writes them
CONTEXT = 64  # cached tokens of each sequence, in a profile that is made here
SHOWN = 12  # rows of the chart
HEIGHT = 22  # of a row
US = 1e6


@dataclass(frozen=True)
class StepKernels:
    """Kernels of one replay of a decode step.

    device: its name. kernels: name, how many, and their microseconds together. bytes_us: what reading the step's bytes
    alone takes there. commit: of a recorded one, "" for one that is measured here.
    """

    device: str
    kernels: tuple[tuple[str, int, float], ...]
    step_us: float
    bytes_us: float
    commit: str = ""

    @property
    def where(self) -> str:
        return f"{self.device}, commit {self.commit}" if self.commit else self.device

    @property
    def launches(self) -> int:
        return sum(count for _, count, _ in self.kernels)


def profile_step(stage_class: type[Stage], spec: str = "random:gpt2", batch_size: int = 1) -> Recorded:
    """Profile one replay of a stage's decode step on this machine's GPU, in float16, and chart its kernels.

    Without a GPU nothing is loaded, and it says so.
    """
    what = f"kernels of a decode step of {stage_class.name}, {spec}, {counted(batch_size, 'sequence')}"
    cards = [card_of(measured(stage_class, spec, batch_size))] if torch.cuda.is_available() else []
    return Recorded(what, cards, "profiles on this machine's GPU", "measured here once there is a GPU")


def measured(stage_class: type[Stage], spec: str, batch_size: int) -> StepKernels:
    """Profile a replay on this machine's GPU."""
    model = load_model(spec, device="cuda", dtype=torch.float16)
    stage: Any
    stage, seqs = ready_batch(stage_class, model, [CONTEXT] * batch_size, steps=2)
    [graph] = stage.graphs.values()
    with torch.inference_mode():
        found, _ = profiled(graph.replay)
    kernels = tuple((row["name"], row["count"], US * row["seconds"]) for row in found)
    machine = measure_machine(model.device, model.dtype)
    floor = decode_floor(model.config, list(map(len, seqs)), model.dtype)
    reading = US * (floor.weight_bytes + floor.kv_bytes) / machine.read_bytes_per_s
    return StepKernels(machine.name, kernels, sum(us for *_, us in kernels), reading)


def recorded_step(
    spec: str = "random:gpt2", batch_size: int = 1, launches: Literal["most", "fewest"] = "most", folder: Path = DATA
) -> Recorded:
    """Chart the kernels of a decode step of the engine, as a GPU report recorded them.

    launches: which of the recorded runs, of one model and batch size, is shown: the one with the most launches, from
    before the engine fused its products, or with the fewest, on this machine's GPU if it was recorded there. Raises
    ValueError for a file that has no such steps.
    """
    what = f"kernels of the engine's decode step, {spec}, {counted(batch_size, 'sequence')}, the {launches} launches"
    here = this_gpu()

    def place(step: StepKernels) -> tuple[bool, int]:
        return (False, -step.launches) if launches == "most" else (step.device != here, step.launches)

    return Recorded(what, [card_of(step) for step in sorted(recorded(spec, batch_size, folder), key=place)[:1]])


def this_gpu() -> str | None:
    """Return the name of this machine's GPU, None without one."""
    return device_name("cuda") if torch.cuda.is_available() else None


def recorded(spec: str, batch_size: int, folder: Path) -> Iterator[StepKernels]:
    """Read the steps of a model and batch size that were recorded on GPUs; a CPU's have no times of kernels."""
    for path in sorted(folder.glob(FILES)):
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
            rows = [row for row in run["rows"] if (row["model"], row["batch_size"]) == (spec, batch_size)]
            for row in rows:
                kernels = [
                    (short_name(k["name"]), k["count"], US * k["seconds"]) for k in row["kernels"] if k["seconds"]
                ]
                if kernels:
                    step_us, reading = US * row["seconds"], US * row["bytes_seconds"]
                    commit = short_commit(run["commit"])
                    yield StepKernels(run["device"], longest_first(kernels), step_us, reading, commit)
        except (KeyError, TypeError, ValueError) as error:
            name = path.relative_to(folder).as_posix()
            raise ValueError(f"data/{name} is no result as `roseinfer bench step` writes it: {error!r}") from error


def longest_first(kernels: Iterable[tuple[str, int, float]]) -> tuple[tuple[str, int, float], ...]:
    return tuple(sorted(kernels, key=lambda kernel: -kernel[2]))


def card_of(step: StepKernels) -> str:
    """Chart a step's kernels below a sentence about it, as HTML."""
    times = f"{step.step_us:,.0f} µs a step. Reading its bytes alone would take {step.bytes_us:,.0f} µs."
    return f"<p><b>{html.escape(step.where)}</b>: {step.launches} launches, {times}</p>{chart_of(step).to_html()}"


def chart_of(step: StepKernels) -> Chart:
    """Draw a bar for each kernel, as long as all its launches together take, with one launch's time beside it."""
    import altair as alt
    import pandas as pd

    shown, rest = step.kernels[:SHOWN], step.kernels[SHOWN:]
    if rest:
        shown = (*shown, (f"{len(rest)} others", sum(n for _, n, _ in rest), sum(us for *_, us in rest)))
    rows = [{"kernel": f"{n} x {name}", "us": us, "each": f"{us / n:.1f} µs each"} for name, n, us in shown]
    frame = pd.DataFrame(rows)
    bars = alt.Chart(csv_data(frame), width=PAGE_WIDTH - 360, height=alt.Step(HEIGHT)).encode(
        alt.X("us:Q", title="microseconds of all its launches together"),
        alt.Y("kernel:N", sort=None, title=None, axis=alt.Axis(labelLimit=340)),
    )
    labels = bars.mark_text(align="left", dx=4).encode(alt.Text("each:N"))
    said = ", ".join(f"{row['kernel']} {row['us']:.0f} µs" for row in rows)
    return Chart(bars.mark_bar(color=PALETTE[0]) + labels, f"{step.launches} launches of a decode step: {said}")
