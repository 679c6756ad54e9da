"""race: stages against each other on the same prompts, with live bars while they run."""

from __future__ import annotations

import html
from collections.abc import Sequence as List
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import ipywidgets
from IPython import get_ipython
from IPython.display import display

from roseinfer.bench import LadderResult, RunProgress, ladder
from roseinfer.bench.contenders import HF_NAME
from roseinfer.bench.ladder import check_stages
from roseinfer.display.table import BAR_COLOUR, MUTED

if TYPE_CHECKING:
    from roseinfer.models import Model
    from roseinfer.profiling.clock import Clock
    from roseinfer.stage import Stage

REDRAW_SECONDS = 0.2  # a message to the browser costs the host time that the next steps should have


def race(
    stages: List[type[Stage]],
    model: Model,
    *,
    batch_size: int = 8,
    prompt_len: int = 8,
    max_new_tokens: int = 16,
    repeats: int = 3,
    seed: int = 0,
    with_hf: bool = False,
) -> LadderResult:
    """bench.ladder with live bars where there is a notebook to show them; classes from a cell may take part.

    Raises ValueError for a bad argument, TokensDiffer for wrong tokens, ContenderFailed when a stage raises.
    """
    check_stages(stages)
    lanes = Race([stage.name for stage in stages] + ([HF_NAME] if with_hf else []))
    if get_ipython() is not None:
        display(lanes)
    try:
        result = ladder(
            stages, model, batch_size=batch_size, prompt_len=prompt_len, max_new_tokens=max_new_tokens,
            repeats=repeats, seed=seed, with_hf=with_hf, on_progress=lanes.update,
        )  # fmt: skip
    except BaseException as error:
        lanes.stop(error)
        raise
    lanes.finish()
    return result


class Race(ipywidgets.VBox):
    """A lane a contender: its decode speed so far, as a bar against the fastest one's. Warm-up runs do not count."""

    def __init__(self, names: List[str], clock: Clock = perf_counter) -> None:
        self._speeds: dict[str, list[float]] = {name: [] for name in names}  # of each finished run
        self._running: dict[str, float] = {}  # of the run that is under way
        self._clock = clock
        self._drawn_at = float("-inf")
        self._status = ipywidgets.HTML()
        self._lanes = {name: ipywidgets.HTML() for name in names}
        super().__init__([self._status, *self._lanes.values()])
        self._draw("measuring this machine")

    def __repr__(self) -> str:
        return f"Race({', '.join(self._lanes)})"

    @property
    def speeds(self) -> dict[str, float]:
        """Tokens a second so far: the median of the finished runs, or the first run's while it is under way."""
        return {name: median(done) if done else self._running.get(name, 0.0) for name, done in self._speeds.items()}

    def update(self, progress: RunProgress) -> None:
        """Take in where the measurement stands; redrawn a few times a second, and after every run."""
        timed = progress.repeat >= 0 and progress.seconds > 0
        if timed and progress.finished:
            self._speeds[progress.name].append(progress.tokens / progress.seconds)
        elif timed:
            self._running[progress.name] = progress.tokens / progress.seconds
        if progress.finished or self._clock() - self._drawn_at >= REDRAW_SECONDS:
            self._draw(f"{progress.phase}: {progress.name}")

    def finish(self) -> None:
        self._draw("finished")

    def stop(self, error: BaseException) -> None:
        self._draw(f"stopped: {error}" if str(error) else f"stopped: {type(error).__name__}")

    def _draw(self, status: str) -> None:
        self._drawn_at = self._clock()
        speeds = self.speeds
        fastest = max(speeds.values(), default=0.0) or 1.0
        self._status.value = f'<span style="{MUTED}">{html.escape(status)}</span>'
        for name, lane in self._lanes.items():
            lane.value = _lane_html(name, speeds[name], speeds[name] / fastest)


def _lane_html(name: str, speed: float, share: float) -> str:
    number = f"{speed:,.0f} tok/s" if speed else ""
    return (
        '<div style="display: flex; align-items: center; gap: 0.8em; line-height: 1.6">'
        f'<code style="width: 18em; text-align: right">{html.escape(name)}</code>'
        f'<span style="width: 24em"><span style="display: block; height: 0.9em; width: {share:.1%}; '
        f'background: {BAR_COLOUR}"></span></span>'
        f'<span style="font-variant-numeric: tabular-nums">{number}</span></div>'
    )
