"""The dashboard's chart: where a step's time goes, stage by stage, and how the speed goes from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roseinfer.display.chart import EMBED, VEGA_LITE, Chart

from .live_batch import UNLABELLED

if TYPE_CHECKING:
    from .live_batch import Lane

TEXT = "chart of the run: ms a step by phase, and tok/s from step to step"
COLOURS = {"build": "#E69F00", "forward": "#56B4E9", "append": "#009E73", UNLABELLED: "#BBBBBB"}  # as in a timeline
OTHER_COLOURS = ("#CC79A7", "#D55E00", "#0072B2", "#F0E442")
EVERY = 4  # steps between two points of a line


class RunChart(Chart):
    """Chart of a run, made once because that takes longer than many steps; `show` puts the latest numbers into it."""

    def __init__(self) -> None:
        import altair as alt

        def legend(columns: int) -> alt.Legend:
            return alt.Legend(title=None, orient="bottom", columns=columns)

        phases = alt.Chart(alt.NamedData("phases"), width=190, height=180).mark_bar()
        phases = phases.encode(
            alt.X("ms:Q", title="ms a step"),
            alt.Y("stage:N", title=None, sort=None),
            order="place:Q",
            color=alt.Color("phase:N", sort=None, scale=alt.Scale(domain=list(COLOURS)), legend=legend(4)),
            tooltip=["stage:N", "phase:N", alt.Tooltip("ms:Q", format=".3f")],
        )
        speeds = alt.Chart(alt.NamedData("speeds"), width=240, height=180).mark_line()
        speeds = speeds.encode(
            alt.X("step:Q", title="decode step"),
            alt.Y("speed:Q", title="tok/s", axis=alt.Axis(format=",.0f")),
            color=alt.Color("stage:N", sort=None, legend=legend(2)),
            tooltip=["stage:N", "step:Q", alt.Tooltip("speed:Q", title="tok/s", format=",.0f")],
        )
        super().__init__(alt.hconcat(phases, speeds).resolve_scale(color="independent"), TEXT)
        self._palette = self.spec["hconcat"][0]["encoding"]["color"]["scale"]

    def show(self, lanes: list[Lane]) -> None:
        """Put the numbers of these lanes into the chart."""
        phases, speeds = [], []
        for lane in lanes:
            for phase, seconds in lane.phase_seconds().items():
                phases.append({"stage": lane.name, "phase": phase, "ms": 1e3 * seconds})
            for step in range(1, len(lane.steps) + 1, EVERY):
                speeds.append({"stage": lane.name, "step": step, "speed": round(lane.speed_at(step), 1)})
        names = [*COLOURS, *dict.fromkeys(row["phase"] for row in phases if row["phase"] not in COLOURS)]
        for row in phases:
            row["place"] = names.index(row["phase"])
        self._palette |= {"domain": names, "range": [*COLOURS.values(), *OTHER_COLOURS]}
        self.spec["datasets"] = {"phases": phases, "speeds": speeds}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Leave out the picture, which would take time from the steps. Before the first `show` there is only text."""
        bundle = {"text/plain": repr(self)} | ({VEGA_LITE: self.spec} if "datasets" in self.spec else {})
        return bundle, {VEGA_LITE: EMBED}
