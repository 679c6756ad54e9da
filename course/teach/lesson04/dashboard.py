"""dashboard: a panel that decodes with the stages you choose and shows where the time goes while it does."""

from __future__ import annotations

import html
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
from IPython.display import display

from roseinfer.display.chart import show_live
from roseinfer.display.table import MUTED
from roseinfer.models.shapes import RANDOM_SHAPES
from roseinfer.stage import Stage

from .dashboard_chart import RunChart
from .dashboard_panel import IDLE, RunTable, progress
from .live_run import DTYPE_NAMES, LiveRun, RunSettings

if TYPE_CHECKING:
    from IPython.display import DisplayHandle


MODELS = ("tiny", *(f"random:{name}" for name in RANDOM_SHAPES))


def dashboard(
    stages: type[Stage] | Sequence[type[Stage]],
    model: str = "tiny",
    *,
    batch_size: int = 8,
    prompt_len: int = 16,
    max_new_tokens: int = 128,
    dtype: str = "float32",
) -> Dashboard:
    """Make a panel in which you choose some of `stages` (classes from a cell too) and watch them decode in turn.

    The other arguments are what the panel starts with; the first stage is selected. Nothing runs before Start, and the
    stages take turns until Stop. Raises ValueError for a bad argument.
    """
    chosen: tuple[Any, ...] = tuple(stages) if isinstance(stages, (list, tuple)) else (stages,)
    return Dashboard(RunSettings(chosen, model, batch_size, prompt_len, max_new_tokens, dtype))


class Dashboard(ipywidgets.VBox):
    """Panel of `dashboard`. Its repr says what it was made with; start and stop do what its buttons do.

    It decodes in a background thread, so other cells can be run meanwhile. The panel reports a bad choice. Start ends a
    run that is under way, of this panel or of another one of this kernel.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.run: LiveRun | None = None
        self._table, self._chart = RunTable(), RunChart()
        self._shown: list[tuple[RunTable | RunChart, DisplayHandle]] = []  # in a notebook
        self.live = ipywidgets.HTML(IDLE)  # where the run stands, a refusal or an error
        super().__init__([self._controls(), self.live])

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
        """Decode with the current choices."""
        try:
            self.run = LiveRun(self._chosen(), self._on_report)
        except ValueError as error:
            self.live.value = f"<div>{html.escape(str(error))}</div>"
        else:
            self.run.start()

    def stop(self) -> None:
        """End the run after the step that is under way."""
        if self.run is not None:
            self.run.stop()

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
        )

    def _on_report(self, run: LiveRun) -> None:
        if run is not self.run:
            return  # its panel has started another one
        if run.shown:
            self._table.show(run)
            self._chart.show(run.shown)
            for view, shown in self._shown:
                shown.update(view)
        self.live.value = progress(run) + (_failure(run.error) if run.error else "")

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
        for field, label_width, width in (
            (self.stages, "4em", "19em"),
            (self.model, "4em", "16em"),
            (self.dtype, "4em", "16em"),
            (self.batch_size, "9em", "15em"),
            (self.prompt_len, "9em", "15em"),
            (self.max_new_tokens, "9em", "15em"),
        ):
            field.style.description_width, field.layout.width = label_width, width
        buttons = _button("Start", "play", self.start), _button("Stop", "stop", self.stop)
        sizes = ipywidgets.VBox([self.batch_size, self.prompt_len, self.max_new_tokens])
        box = ipywidgets.HBox([self.stages, ipywidgets.VBox([self.model, self.dtype]), sizes, *buttons])
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
