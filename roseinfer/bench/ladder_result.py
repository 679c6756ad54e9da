"""LadderResult: one measurement as a table in a notebook, a table in a terminal, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.display.measured import MachineResult
from roseinfer.display.table import Table
from roseinfer.display.text_table import Column, TextTable
from roseinfer.profiling import TRANSFERS

from .neighbours import busy_sentence
from .settings import HF_NAMES
from .verdict import explanation, runs_text

if TYPE_CHECKING:
    import pandas as pd

COUNTS = ["copies", "cats", "selects", "bytes copied"]


def _of(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return a row's value, None where a contender lacks it."""
    return lambda row: row.get(name)


def _less_one(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda row: None if row.get(name) is None else row[name] - 1


def _ends(row: dict[str, Any]) -> str:
    return f"{row['tokens_per_second_min']:,.0f}..{row['tokens_per_second_max']:,.0f}"


# The columns of both tables: how a value is shown, and how it follows from a row.
COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "stage": ("{}", _of("stage")),
    "tok/s": ("{:,.0f}", _of("tokens_per_second")),
    "of fastest": ("{:.0%}", _of("of_fastest")),
    "min..max": ("{}", _ends),
    "vs previous": ("{:+.1%}", _less_one("vs_previous")),
    "vs first": ("{:+.1%}", _less_one("vs_first")),
    "verdict": ("{}", _of("verdict")),
    "total tok/s": ("{:,.0f}", _of("total_tokens_per_second")),
    "step ms": ("{:,.2f}", _of("step_ms")),
    "products ms": ("{:,.2f}", lambda row: row.get("products_seconds") and 1e3 * row["products_seconds"]),
    "of floor": ("{:.1%}", _of("floor_share")),
    "bound by": ("{}", _of("bound")),
    "aten ops": ("{:,}", _of("aten_ops")),
    **{name: ("{:,}", _of(name.replace(" ", "_"))) for name in (*COUNTS, TRANSFERS)},
    "tokens": ("{}", _of("tokens")),
}
IN_TERMINAL = [
    "stage",
    "tok/s",
    "min..max",
    "vs previous",
    "vs first",
    "verdict",
    "step ms",
    "of floor",
    "bound by",
    "aten ops",
    "bytes copied",
    "tokens",
]
# The story of a race fits a page in six columns: who, how fast, against the first, how near the floor, what it copied,
# whether it is right.
SPEED, AGAINST, FLOOR = "tok/s (min..max)", "against the first", "of floor, bound by"
FOLDED = ["of fastest", "vs previous", "total tok/s", "step ms", "products ms", "aten ops", *COUNTS[:-1], TRANSFERS]
EXACT = ["stage", *COUNTS, "tokens"]


@dataclass(frozen=True, kw_only=True, repr=False)
class LadderResult(MachineResult):
    """What `ladder` measured. Its text/plain shows exact facts alone; text/html has the times, too.

    rows: a dict for each contender, in order; speeds in tokens a second, deltas as ratios of medians. samples: the raw
    runs that the rows summarise (see interleave.measure). floor: that of one decode step at the middle context.
    not_run: the contenders that were left out or failed, and why.
    """

    SHORT: ClassVar = ("stage", "tokens_per_second", "tokens_per_second_min", "tokens_per_second_max", "tokens")
    SHORT_FIELDS: ClassVar = (*MachineResult.SHORT_FIELDS, "not_run")

    model: dict[str, Any]
    machine: dict[str, Any]
    floor: dict[str, Any]
    not_run: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return repr(self._view)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._view._repr_mimebundle_()

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        """Return the table for a terminal: what fits on a hundred columns or so; the notebook's view has more."""
        all_equal = all(row["tokens"] == "equal" for row in self.rows)
        shown = [name for name in IN_TERMINAL if name != "tokens" or not all_equal]
        columns = [Column(name, COLUMNS[name][0].format) for name in shown]
        table = TextTable.of(columns, zip(*(self.columns[name] for name in shown), strict=True))
        table = replace(table, names=[name.replace(" ", "\n") for name in table.names])
        title = f"{self.title}; tokens equal" if all_equal else self.title
        return [f"{title}\n{table.text(width)}"]

    def notes(self) -> list[str]:
        return [" ".join(filter(None, (self.warning, self.note, self.explanation)))]

    @property
    def title(self) -> str:
        a = self.arguments
        return (
            f"{counted(a['batch_size'], 'sequence')}, prompt of {counted(a['prompt_len'], 'token')}, "
            f"{counted(a['max_new_tokens'], 'new token')} each, "
            f"{self.model['dtype']}"
        )

    @property
    def warning(self) -> str:
        """Sentence on what other programs did to the times; empty on a quiet machine."""
        return busy_sentence(self.samples)

    @property
    def note(self) -> str:
        floor, runs = self.floor, runs_text(self.arguments["repeats"])
        return (
            f"{self.device}, torch {self.versions['torch']}; {runs} each. Floor of a step at context "
            f"{floor['context_len']}: {1e3 * floor['seconds']:.3f} ms, {floor['batch_size'] / floor['seconds']:,.0f} "
            f"tok/s, set by {floor['bound']}."
        ) + "".join(f" {name} left out: {reason}." for name, reason in self.not_run.items())

    @property
    def explanation(self) -> str:
        """Text that says what the columns mean."""
        text = (
            "tok/s: decoding alone, by each run's median step; the median run, and the slowest and the fastest; step "
            f"ms and of floor follow from it. {explanation(self.arguments['repeats'])} Bound by reading or arithmetic: "
            "that alone, at this machine's rates, takes at least half of the step. By the host: the step's matrix "
            "products alone, as the stage holds them, with reading keys and values, its own copies and what it "
            "computes again, take less than half of it. By its kernels: neither, or they are inside one operation. "
            f"Counts: one whole stage.decode at context {self.floor['context_len']}, or the one function that a step "
            "is; aten ops with those that ops start; the others are the stage's own, alike on every device, and "
            "transfers, the copies between host and device, stand apart."
        )
        rows = {row["stage"] for row in self.rows}
        if HF_NAMES["dynamic"] in rows:
            text += " HF generate: the same weights and prompts in one batch, greedy, dynamic cache."
        if HF_NAMES["static"] in rows:
            text += " Static cache: allocated once; on a GPU, generate compiles the model for it."
        return text

    @property
    def _on_totals(self) -> str:
        text = " total tok/s: prefill included; up to stage 10 one prompt after another"
        return text + (", HF all in one batch." if self.arguments["with_hf"] else ".")

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """The rows under the names that the tables use; None where a contender lacks a figure."""

        fastest = max(row["tokens_per_second"] for row in self.rows)
        rows = [row | {"of_fastest": row["tokens_per_second"] / fastest} for row in self.rows]
        return {name: [of(row) for row in rows] for name, (_, of) in COLUMNS.items()}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The columns as a data frame, for a notebook's table."""
        import pandas as pd

        frame = pd.DataFrame(self.columns)
        floats = dict.fromkeys(("vs previous", "vs first"), float)
        return frame.astype(floats | dict.fromkeys(("aten ops", *COUNTS, TRANSFERS), "Int64"))

    @cached_property
    def _view(self) -> Table:
        told = {
            SPEED: [f"{row['tokens_per_second']:,.0f} ({_ends(row)})" for row in self.rows],
            AGAINST: [f"{row['vs_first'] - 1:+.1%}, {row['verdict']}" if row["verdict"] else "" for row in self.rows],
            FLOOR: [f"{row['floor_share']:.1%}, {row['bound']}" for row in self.rows],
        }
        # In half precision each machine has tokens of its own.
        shown = EXACT if self.model["dtype"] == "float32" else EXACT[:-1]
        columns = ["stage", SPEED, AGAINST, FLOOR, *FOLDED, "bytes copied", "tokens"]
        return Table(
            self.frame.assign(**told)[columns],
            exact=shown,
            live=[name for name in columns if name not in shown],
            title=self.title,
            note=self.note,
            warning=self.warning,
            explanation=self.explanation + self._on_totals,
            formats={name: COLUMNS[name][0] for name in columns if name in COLUMNS},
            bars=["of fastest"],
            folded=FOLDED,
        )
