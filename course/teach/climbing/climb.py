"""climb: the last cell of each lesson. How fast every stage so far decodes, with the engine as the goal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from roseinfer.bench.contenders import StageContender, hf_contender
from roseinfer.bench.interleave import measure
from roseinfer.bench.ladder import random_prompts
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.bench.settings import HF_NAME
from roseinfer.engine.as_stage import EngineStage
from roseinfer.models import load_model
from roseinfer.paths import DATA
from roseinfer.profiling import decode_floor, measure_machine

from ..measure.progress_bar import progress_bar
from . import speeds
from .chart import ClimbChart, Side
from .speeds import Speed

if TYPE_CHECKING:
    from roseinfer.bench.interleave import Contender
    from roseinfer.models import Model
    from roseinfer.profiling.progress import RunProgress
    from roseinfer.stage import Stage

# One workload for the whole course, small enough that a stage takes a second or two.
BATCH_SIZE, PROMPT_LEN, MAX_NEW_TOKENS, REPEATS = 16, 32, 64, 3
WORKLOAD = f"{BATCH_SIZE} sequences, prompts of {PROMPT_LEN} tokens, {MAX_NEW_TOKENS} new tokens each, tiny, float32"
FLOOR = "floor"
RECORDED = "climb.json"


def climb(stage: type[Stage]) -> ClimbChart:
    """Chart the stages up to this one, the engine, and transformers' generate, on the CPU of this machine.

    Args:
        stage: the last stage of the chart.

    Each is timed once per machine and kept; only what is missing is run, and what a busy machine made unsteady. With
    ROSEINFER_CLIMB=recorded nothing is run: the chart shows the recorded climb. Raises ValueError for a class that is
    not a stage of the course.
    """
    ladder = _ladder_of(stage)
    text = f"the climb to {stage.name}"
    if speeds.place() is None:
        return ClimbChart([_recorded(DATA / RECORDED, stage.name), *recorded_sides(stage.name)], text, stage.name)
    model = load_model("tiny", device="cpu")
    built = ladder[: ladder.index(stage) + 1]
    wanted: list[type[Stage]] = [*built, EngineStage]
    contenders = [each for each in wanted if not each.why_untimed(model.device)]
    under = speeds.key(model.device, ladder)
    found = {name: speed for name, speed in speeds.kept(under).items() if speed.is_steady}
    if missing := [each for each in contenders if each.name not in found]:
        measured = _measure(model, missing, with_hf=HF_NAME not in found)
        if FLOOR not in found:
            measured.append(_floor(model))
        speeds.keep(under, measured)
        found |= {speed.name: speed for speed in measured}
    rows = [found[each.name] for each in contenders]
    sides = [
        Side(f"this machine: {WORKLOAD}", rows, found[HF_NAME], found[FLOOR].tokens_per_second),
        *recorded_sides(stage.name),
    ]
    left_out = {each.name: each.why_untimed(model.device) for each in built if each not in contenders}
    return ClimbChart(sides, text, stage.name, left_out)


def _ladder_of(stage: type[Stage]) -> tuple[type[Stage], ...]:
    """Return all stages of the course that this one belongs to. Raises ValueError if it belongs to none."""
    package = sys.modules[stage.__module__.partition(".")[0]]
    ladder: tuple[type[Stage], ...] = getattr(package, "LADDER", ())
    if stage not in ladder:
        raise ValueError(f"stage must be one of the package `stages`, such as Graphs, got {stage.__name__}")
    return ladder


def recorded_climb(path: Path = DATA / RECORDED) -> ClimbChart:
    """Chart the whole climb as it was recorded, with nothing run: `roseinfer ladder --output` wrote the file.

    Raises ValueError for another file.
    """
    return ClimbChart([_recorded(path), *recorded_sides()], "the whole climb, recorded")


def recorded_sides(up_to: str = "", folder: Path = DATA) -> list[Side]:
    """Read what `make gpu-report` recorded on GPUs, as far as the stage `up_to`, or all of it."""
    return [_recorded(path, up_to) for path in sorted(folder.glob(f"runs/*/{RECORDED}"))]


def _recorded(path: Path, up_to: str = "") -> Side:
    try:
        result = LadderResult(**json.loads(path.read_text(encoding="utf-8")))
        rows = {
            row["stage"]: Speed(row["stage"], *(row[f"tokens_per_second{end}"] for end in ("", "_min", "_max")))
            for row in result.rows
        }
        floor = result.floor["batch_size"] / result.floor["seconds"]
        hf = rows.pop(HF_NAME)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: must be what `roseinfer ladder --output` wrote: {error}") from error
    shown = [speed for name, speed in rows.items() if not up_to or name <= up_to or name == EngineStage.name]
    return Side(f"recorded on {result.device}: {result.title}", shown, hf, floor)


def _measure(model: Model, stages: Sequence[type[Stage]], with_hf: bool) -> list[Speed]:
    """Time all stages in turn: one warm-up run each, then REPEATS."""
    prompts = random_prompts(model, BATCH_SIZE, PROMPT_LEN)
    contenders: list[Contender] = [
        (entrant.name, entrant.run)
        for entrant in (StageContender(stage, model, prompts, MAX_NEW_TOKENS) for stage in stages)
    ]
    if with_hf:
        contenders.append(hf_contender(model, prompts, MAX_NEW_TOKENS))
    with progress_bar("the climb, runs", len(contenders) * (1 + REPEATS)) as done:

        def on_progress(progress: RunProgress) -> None:
            if progress.finished:
                done()

        samples = measure(contenders, repeats=REPEATS, on_progress=on_progress)
    rates = {name: [s["tokens_per_second"] for s in samples if s["name"] == name] for name, _ in contenders}
    return [Speed(name, median(own), min(own), max(own)) for name, own in rates.items()]


def _floor(model: Model) -> Speed:
    """Measure what no step can beat: reading weights and cache once, or the products, at this machine's rates."""
    context_len = PROMPT_LEN + MAX_NEW_TOKENS // 2
    machine = measure_machine(model.device, model.dtype)
    floor = decode_floor(model.config, [context_len] * BATCH_SIZE, model.dtype, machine)
    rate = BATCH_SIZE / floor.seconds
    return Speed(FLOOR, rate, rate, rate)
