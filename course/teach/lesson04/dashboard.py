"""dashboard: a panel that decodes with the stages you choose and shows where the time goes while it does."""

from __future__ import annotations

import html
import threading
import traceback
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import ipywidgets
from IPython.display import display

from roseinfer.display.chart import show_live
from roseinfer.display.table import MUTED
from roseinfer.models.shapes import RANDOM_SHAPES
from roseinfer.stage import Stage

from .dashboard_chart import RunChart
from .dashboard_panel import IDLE, RunTable, progress, rows_of
from .live_run import DTYPE_NAMES, LiveRun, RunSettings

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

    from roseinfer.profiling.clock import Clock

    from .live_batch import Lane

MODELS = ("tiny", *(f"random:{name}" for name in RANDOM_SHAPES))
ALREADY = "This panel is decoding already: press Stop first."
RESULTS_SECONDS = 0.5  # between two drawings of table and chart, which are a message of some 50 kB
NOTHING_TO_PIN = "There is nothing to pin yet: press Start first."


def dashboard(
    stages: type[Stage] | Sequence[type[Stage]],
    model: str = "tiny",
    *,
    batch_size: int = 8,
    prompt_len: int = 16,
    max_new_tokens: int = 128,
    dtype: str = "float32",
    repeat: bool = False,
) -> Dashboard:
    """Make a panel in which you choose some of `stages` (classes from a cell too) and watch them decode in turn.

    The other arguments are what the panel starts with; the first stage is selected. repeat: start again with the first
    stage, until Stop. Nothing runs before Start. Raises ValueError for a bad argument.
    """
    chosen: tuple[Any, ...] = tuple(stages) if isinstance(stages, (list, tuple)) else (stages,)
    return Dashboard(RunSettings(chosen, model, batch_size, prompt_len, max_new_tokens, dtype, repeat))


class Dashboard(ipywidgets.VBox):
    """Panel of `dashboard`. Its repr says what it was made with; start, stop, pin and wait do what its buttons do.

    It decodes in a background thread, so other cells can be run meanwhile. The panel reports a bad choice. Start stops
    a run that another panel of this kernel has under way, but not one of this panel.
    """

    def __init__(self, settings: RunSettings, clock: Clock = perf_counter) -> None:
        self._settings = settings
        self._clock = clock
        self._guard = threading.Lock()  # handlers and the run's thread both draw
        self.run: LiveRun | None = None
        self.baseline: Lane | None = None
        self._table, self._chart = RunTable(), RunChart()
        self._shown: list[tuple[RunTable | RunChart, DisplayHandle]] = []  # in a notebook
        self._drawn_at = float("-inf")
        self._message = ipywidgets.HTML()
        self._live = ipywidgets.HTML(IDLE)
        super().__init__([self._controls(), self._message, self._live])

    def __repr__(self) -> str:
        stages = self._settings.stages
        named = stages[0].name if len(stages) == 1 else f"{len(stages)} stages"
        return f"Dashboard({named}, {self._settings})"

    def _ipython_display_(self) -> None:
        """Display the table and the chart as outputs of their own, which JupyterLab updates in place and saves."""
        display(self._repr_mimebundle_(), raw=True)
        shown = [(view, show_live(view)) for view in (self._table, self._chart)]
        self._shown += [(view, handle) for view, handle in shown if handle is not None]

    def start(self) -> None:
        """Decode with the current choices. While this panel's run is under way, the panel refuses."""
        with self._guard:
            if self.run is not None and self.run.running:
                self._say(ALREADY)
                return
            try:
                settings = self._chosen()
            except ValueError as error:
                self._say(str(error))
                return
            self._say("")
            self.run = LiveRun(settings, self._on_report, self._clock)
            self.run.start()

    def stop(self) -> None:
        """End the run after the step that is under way; its blocks are freed."""
        with self._guard:
            if self.run is not None and self.run.running:
                self._say("Stopping after this step.")
                self.run.stop()

    def pin(self) -> None:
        """Pin as baseline the current (or last) stage's latest whole batch, or its batch so far if none is whole."""
        with self._guard:
            if self.run is None or self.run.current is None or not self.run.current.steps:
                self._say(NOTHING_TO_PIN)
                return
            current = self.run.current
            self.baseline = self.run.finished.get(current.name, current).pinned()
            self._draw_results(self.run)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over. Returns False if it is not after timeout seconds. An interrupt stops the run."""
        if self.run is None:
            return True
        try:
            return self.run.wait(timeout)
        except KeyboardInterrupt:
            self.run.stop()
            raise

    @property
    def message(self) -> str:
        """The panel's line for a refusal or an error, as HTML."""
        return self._message.value

    def _chosen(self) -> RunSettings:
        if not self.stages.value:
            raise ValueError("stages: choose at least one")
        return RunSettings(
            self.stages.value,
            self.model.value.strip(),
            self.batch_size.value,
            self.prompt_len.value,
            self.max_new_tokens.value,
            self.dtype.value,
            self.repeat.value,
        )

    def _on_report(self, run: LiveRun) -> None:
        with self._guard:
            if run is not self.run:
                return  # its panel has started another one
            if not run.running or self._clock() - self._drawn_at >= RESULTS_SECONDS:
                self._draw_results(run)
            self._live.value = progress(run)
            self._start.disabled, self._stop.disabled = run.running, not run.running
            if not run.running:
                self._message.value = _failure(run.error) if run.error else ""

    def _draw_results(self, run: LiveRun) -> None:
        if rows := rows_of(run, self.baseline):
            self._table.show(run, rows, self.baseline)
            self._chart.show(rows, self.baseline)
            for view, shown in self._shown:
                shown.update(view)
        self._drawn_at = self._clock()

    def _say(self, text: str) -> None:
        self._message.value = f"<div>{html.escape(text)}</div>" if text else ""

    def _controls(self) -> ipywidgets.HBox:
        s = self._settings
        self.stages = ipywidgets.SelectMultiple(
            options=[(stage.name, stage) for stage in s.stages],
            value=s.stages[:1],
            description="stages",
            rows=max(4, len(s.stages)),
        )
        self.model = ipywidgets.Combobox(value=s.model, options=MODELS, description="model")
        self.dtype = ipywidgets.Dropdown(value=s.dtype, options=list(DTYPE_NAMES), description="dtype")
        self.batch_size = ipywidgets.IntText(s.batch_size, description="batch_size")
        self.prompt_len = ipywidgets.IntText(s.prompt_len, description="prompt_len")
        self.max_new_tokens = ipywidgets.IntText(s.max_new_tokens, description="max_new_tokens")
        self.repeat = ipywidgets.Checkbox(s.repeat, description="again until Stop", indent=False)
        for field, label_width, width in (
            (self.stages, "4em", "19em"),
            (self.model, "4em", "16em"),
            (self.dtype, "4em", "16em"),
            (self.batch_size, "9em", "15em"),
            (self.prompt_len, "9em", "15em"),
            (self.max_new_tokens, "9em", "15em"),
        ):
            field.style.description_width, field.layout.width = label_width, width
        self._start = _button("Start", "play", self.start)
        self._stop = _button("Stop", "stop", self.stop)
        self._stop.disabled = True
        pin = _button("Pin as baseline", "thumb-tack", self.pin)
        buttons = ipywidgets.VBox([ipywidgets.HBox([self._start, self._stop]), pin, self.repeat])
        buttons.layout.align_items = "flex-start"
        sizes = ipywidgets.VBox([self.batch_size, self.prompt_len, self.max_new_tokens])
        box = ipywidgets.HBox([self.stages, ipywidgets.VBox([self.model, self.dtype]), sizes, buttons])
        box.layout.flex_flow = "row wrap"
        return box


def _button(label: str, icon: str, act: Callable[[], None]) -> ipywidgets.Button:
    button = ipywidgets.Button(description=label, icon=icon)
    button.layout.width = "auto"
    button.on_click(lambda _: act())
    return button


def _failure(error: Exception) -> str:
    """Format an error as HTML: its own line, and the traceback folded away."""
    trace = "".join(traceback.format_exception(error))
    return (
        f'<div><b>{type(error).__name__}:</b> {html.escape(str(error))}</div><details style="{MUTED}">'
        f"<summary>Traceback</summary><pre>{html.escape(trace)}</pre></details>"
    )
