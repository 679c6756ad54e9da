"""race: stages against each other on the same prompts, with live bars while they run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from course.display.speed_bars import SpeedBars
from roseinfer.bench.ladder import check_stages, ladder
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.bench.settings import HF_NAME, Ladder
from roseinfer.display.chart import EMBED, VEGA_LITE, show_live
from roseinfer.profiling.progress import RunProgress

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

    from roseinfer.models import Model
    from roseinfer.profiling.clock import Clock
    from roseinfer.stage import Stage

REDRAW_SECONDS = 0.2  # a message to the browser costs the host time that the next steps should have


def race(
    stages: Sequence[type[Stage]],
    model: Model,
    *,
    batch_size: int = 8,
    prompt_len: int = 8,
    max_new_tokens: int = 16,
    repeats: int = 5,
    seed: int = 0,
    with_hf: bool = False,
) -> LadderResult:
    """Race stages on the same prompts, with live bars in a notebook. Classes from a cell may take part.

    Args:
        stages: classes; the first one is what the others are compared with.
        model: from load_model.
        batch_size: sequences that decode together.
        prompt_len: tokens of each prompt.
        max_new_tokens: new tokens of each sequence.
        repeats: runs of each stage, in turn with the others.
        seed: of the prompts' random tokens.
        with_hf: let transformers' generate take part.

    Raises ValueError for a bad argument, TokensDiffer for wrong tokens, ContenderFailed when a stage raises.
    """
    check_stages(stages)
    setting = Ladder(
        batch_size=batch_size,
        prompt_len=prompt_len,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        seed=seed,
        with_hf=with_hf,
    )
    bars = Race([stage.name for stage in stages] + ([HF_NAME] if with_hf else []))
    try:
        result = ladder(stages, model, setting, on_progress=bars.update)
    except BaseException as error:
        bars.stop(error)
        raise
    bars.finish(result)
    return result


class Race:
    """One bar per contender: its decode speed so far, the median of its finished runs. Warm-up runs do not count."""

    def __init__(self, names: Sequence[str], clock: Clock = perf_counter) -> None:
        self._speeds: dict[str, list[float]] = {name: [] for name in names}  # of each finished run
        self._running: dict[str, float] = {}  # of the run that is under way
        self._clock = clock
        self._drawn_at = float("-inf")
        self._shown: DisplayHandle | None = None
        self.chart = SpeedBars(names, repr(self))
        self._draw("measuring this machine")
        self._shown = show_live(self)

    def __repr__(self) -> str:
        return f"Race({', '.join(self._speeds)})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the text and the chart's spec, without a picture: that takes longer to draw than some steps to run."""
        return {"text/plain": repr(self), VEGA_LITE: self.chart.spec}, {VEGA_LITE: EMBED}

    @property
    def speeds(self) -> dict[str, float]:
        """Return tokens per second so far: the finished runs' median, or the first run's speed while it lasts."""
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

    def finish(self, result: LadderResult) -> None:
        """Replace the live numbers by the result's own."""
        floor = result.floor["batch_size"] / result.floor["seconds"]
        rows = {
            row["stage"]: tuple(row[f"tokens_per_second{end}"] for end in ("", "_min", "_max")) for row in result.rows
        }
        self.chart.show(result.title, rows, floor)
        if self._shown is not None:
            self._shown.update(self.chart)

    def stop(self, error: BaseException) -> None:
        self._draw(f"stopped: {error}" if str(error) else f"stopped: {type(error).__name__}")

    def _draw(self, status: str) -> None:
        self._drawn_at = self._clock()
        ends = {name: (min(done), max(done)) for name, done in self._speeds.items() if done}
        self.chart.show(status, {name: (now, *ends.get(name, (now, now))) for name, now in self.speeds.items()})
        if self._shown is not None:
            self._shown.update(self)
