"""serve_requests: the last cell of each lesson. The same 24 requests by every stage so far, with the engine as goal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from course.own_engine import my_engine
from roseinfer.bench.token_check import Referee
from roseinfer.cli.repository import stages_package
from roseinfer.engine.as_stage import EngineStage
from roseinfer.hardware import device_name
from roseinfer.models import load_model
from roseinfer.paths import DATA
from roseinfer.stage import Stage

from ..measure.progress_bar import progress_bar
from . import kept
from .chart import ServedChart
from .kept import Served
from .serve import MOST_SECONDS, measure
from .workload import NUM_REQUESTS, SPEC, TOKENS_IN, TOKENS_OUT, requests

CPU = torch.device("cpu")
RECORDED = DATA / "requests.json"
WORKLOAD = f"{NUM_REQUESTS} requests, {TOKENS_IN:,} tokens in, {TOKENS_OUT:,} out"


def serve_requests(stage: type[Stage], why: str = "") -> ServedChart:
    """Serve the same 24 requests by every stage up to this one, and by the engine, on the CPU of this machine.

    Args:
        stage: the lesson's stage, of the package `stages`, or EngineStage for the finished engine.
        why: the reason, where this stage gains nothing here: a line below the sentence.

    Each stage is timed once per machine and kept; only what is missing is run, and what a busy machine made unsteady.
    Your own engine (my_engine) gets a bar, too, once you have written a piece of it; it is timed each time.
    With ROSEINFER_REQUESTS=recorded nothing is run: the chart shows data/requests.json. Raises ValueError for a class
    that is not a stage of the course, and TokensDiffer for a stage whose tokens are wrong.
    """
    wanted = stages_up_to(stage)
    timed = [each for each in wanted if not each.why_untimed(CPU)]
    if kept.place() is None:
        where, found = read_recorded()
    else:
        where, found = f"this machine, {device_name(CPU)}", measured(timed)
    notes = [f"{each.name} is left out: {each.why_untimed(CPU)}" for each in wanted if each not in timed]
    before = _before(stage, timed) if stage in timed else ""
    text = f"{WORKLOAD}, served by the stages up to {stage.name}"
    rows = [found[each.name] for each in timed]
    if kept.place() and (own := my_engine()):
        rows.insert(-1, measure(own, load_model(SPEC, device=CPU), requests(), _referee()))
    return ServedChart(rows, where, text, stage.name, before, [*([why] if why else []), *notes])


def recorded_requests() -> ServedChart:
    """Chart the same 24 requests by all stages of the course as they were recorded, with nothing run."""
    where, found = read_recorded()
    names = [each.name for each in stages_up_to(EngineStage)]
    rows = [found[name] for name in names if name in found]
    return ServedChart(rows, f"recorded on {where}", f"{WORKLOAD}, served by all stages, recorded")


def stages_up_to(stage: type[Stage]) -> list[type[Stage]]:
    """Return the stages that the engine grew from up to this one, this one, and the engine.

    A stage that no later one builds on, as stage 21 is, stands in its own lesson alone. Raises ValueError for a class
    that is not a stage of the course.
    """
    ladder = stages_package().LADDER
    if stage is not EngineStage and stage not in ladder:
        raise ValueError(f"stage must be one of the package `stages`, such as Graphs, or EngineStage, got {stage!r}")
    last = next(each for each in ladder if each.name == "s19_speculative")
    line = ladder[: ladder.index(last) + 1]
    before = line if stage not in line else line[: line.index(stage)]
    own = [] if stage is EngineStage else [stage]
    return [*before, *own, EngineStage]


def _before(stage: type[Stage], timed: Sequence[type[Stage]]) -> str:
    """Name the stage that this one is compared with: the one that its class builds on, or else the one before it."""
    others = [each for each in timed if each is not EngineStage and each is not stage]
    bases = [each for each in stage.__mro__ if each in others]
    return bases[0].name if bases else others[-1].name if others else ""


def read_recorded(path: Path = RECORDED) -> tuple[str, dict[str, Served]]:
    """Read the machine and what each stage did there. Raises ValueError for another file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = [Served(**row) for row in record["rows"]]
        return record["where"], {row.name: row for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: must be what `python -m tools.requests` wrote: {error}") from error


def _referee() -> Referee:
    return Referee(load_model(SPEC, device=CPU), [prompt for _, prompt in requests()])


def measured(stages: Sequence[type[Stage]], again: bool = False) -> dict[str, Served]:
    """Return the numbers of these stages: those that are kept, unless `again`, and the others measured now."""
    under = kept.key(CPU, stages_package().LADDER)
    found = {} if again else {name: served for name, served in kept.kept(under).items() if served.is_steady}
    if missing := [each for each in stages if each.name not in found]:
        model, work, referee = load_model(SPEC, device=CPU), requests(), _referee()
        label = f"{NUM_REQUESTS} requests, at most {2 * MOST_SECONDS:.0f} s by each of the stages"
        with progress_bar(label, len(missing)) as done:
            for each in missing:
                found[each.name] = measure(each, model, work, referee)
                kept.keep(under, [found[each.name]])
                done()
    return {each.name: found[each.name] for each in stages}
