"""LadderResult: one measurement as a table in a notebook, a table in a terminal, and JSON."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from roseinfer.display.table import Table

from .contenders import HF_NAMES
from .neighbours import busy_sentence
from .verdict import explanation

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {
    "tok/s": "{:,.0f}",
    "of fastest": "{:.0%}",
    "vs previous": "{:+.1%}",
    "vs first": "{:+.1%}",
    "total tok/s": "{:,.0f}",
    "step ms": "{:,.2f}",
    "aten ops": "{:,}",
    "copies": "{:,}",
    "cats": "{:,}",
    "selects": "{:,}",
    "bytes copied": "{:,}",
    "of floor": "{:.1%}",
}
COUNTS = ["copies", "cats", "selects", "bytes copied"]
IN_TERMINAL = [
    "stage", "tok/s", "min..max", "vs previous", "vs first", "verdict", "step ms", "of floor", "bound by", "aten ops",
    "bytes copied", "tokens",
]  # fmt: skip
# The story of a race fits a page in six columns: who, how fast, against the first, how near the floor, what it copied,
# whether it is right.
SPEED, AGAINST, FLOOR = "tok/s (min..max)", "against the first", "of floor, bound by"
FOLDED = ["of fastest", "vs previous", "total tok/s", "step ms", "aten ops", "copies", "cats", "selects"]
NOTE_WIDTH = 120
EXACT = ["stage", *COUNTS, "tokens"]


@dataclass(frozen=True, repr=False)
class LadderResult:
    """What `ladder` measured. Its text/plain holds exact facts alone; text/html has the times too.

    rows: a dict for each contender, in order; speeds in tokens a second, deltas as ratios of medians. samples: the
    raw runs behind them (see interleave.measure). floor: of one decode step at the middle context. not_run: who was
    left out or failed, and why.
    """

    arguments: dict[str, Any]
    model: dict[str, Any]
    host: dict[str, Any]
    device: str
    versions: dict[str, str]
    commit: str | None
    machine: dict[str, Any]
    floor: dict[str, Any]
    rows: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    not_run: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return repr(self._view)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._view._repr_mimebundle_()

    def to_json(self) -> str:
        """Everything, on one line: host, device, versions, commit, arguments, raw samples, rows."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    def text(self, width: int | None = None) -> str:
        """The live view for a terminal: what fits on a hundred columns or so; the notebook's view has more."""
        all_equal = all(row["tokens"] == "equal" for row in self.rows)
        shown = [name for name in IN_TERMINAL if name != "tokens" or not all_equal]
        cells = Table(self.frame, exact=[], formats=FORMATS).cells(shown)
        table = replace(cells, names=[name.replace(" ", "\n") for name in cells.names]).text(width)
        title = f"{self.title}; tokens equal" if all_equal else self.title
        note = " ".join(filter(None, (self.warning, self.note, self.explanation)))
        return f"{title}\n{table}\n\n{textwrap.fill(note, min(width or NOTE_WIDTH, NOTE_WIDTH))}"

    @property
    def title(self) -> str:
        a = self.arguments
        return (
            f"{a['batch_size']} sequences, prompt of {a['prompt_len']} tokens, {a['max_new_tokens']} new tokens each, "
            f"{self.model['dtype']}"
        )

    @property
    def warning(self) -> str:
        """What other programs did to the times; empty on a quiet machine."""
        return busy_sentence(self.samples)

    @property
    def note(self) -> str:
        floor, repeats = self.floor, self.arguments["repeats"]
        runs = "1 run" if repeats == 1 else f"{repeats} interleaved runs"
        return (
            f"{self.device}, torch {self.versions['torch']}; {runs} each. Floor of a step at context "
            f"{floor['context_len']}: {1e3 * floor['seconds']:.3f} ms, {floor['batch_size'] / floor['seconds']:,.0f} "
            f"tok/s, bound by {floor['bound']}."
        ) + "".join(f" {name} left out: {reason}." for name, reason in self.not_run.items())

    @property
    def explanation(self) -> str:
        """What the columns mean."""
        products = 1e3 * self.machine["products_seconds"]
        text = (
            "tok/s: decoding alone, by each run's median step; the median run, and the slowest and the fastest; step "
            f"ms and of floor follow from it. {explanation(self.arguments['repeats'])} Bound by the host: the model's "
            f"matrix products alone, {products:.3f} ms here, with reading keys and values, the step's own copies and "
            "what it computes again take less than half of the step. "
            f"Counts: one whole stage.decode at context {self.floor['context_len']}; aten ops with those that ops "
            "start, the others without what linear layers, embeddings and fused attention do inside."
        )
        rows = {row["stage"] for row in self.rows}
        if HF_NAMES["dynamic"] in rows:
            text += " HF generate: the same weights and prompts in one batch, greedy, dynamic cache."
        if HF_NAMES["static"] in rows:
            text += " Static cache: allocated once; on a GPU, generate compiles the model for it."
        return text

    @property
    def _on_totals(self) -> str:
        text = " total tok/s: prefill included; a stage prefills one prompt after another"
        return text + (", HF all in one batch." if self.arguments["with_hf"] else ".")

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows under the names that the tables use."""
        import pandas as pd

        rows = pd.DataFrame(self.rows)
        fastest = rows["tokens_per_second"].max()
        columns = {
            "stage": rows["stage"],
            "tok/s": rows["tokens_per_second"],
            "of fastest": rows["tokens_per_second"] / fastest,
            "min..max": [_ends(row) for row in self.rows],
            "vs previous": rows["vs_previous"].astype(float) - 1,
            "vs first": rows["vs_first"].astype(float) - 1,
            "verdict": rows["verdict"],
            "total tok/s": rows["total_tokens_per_second"],
            "step ms": rows["step_ms"],
            "of floor": rows["floor_share"],
            "bound by": rows["bound"],
            "aten ops": rows["aten_ops"].astype("Int64"),
            **{name: rows[name.replace(" ", "_")].astype("Int64") for name in COUNTS},
            "tokens": rows["tokens"],
        }
        return pd.DataFrame(columns)

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
            formats={name: FORMATS[name] for name in columns if name in FORMATS},
            bars=["of fastest"],
            folded=FOLDED,
        )


def _ends(row: dict[str, Any]) -> str:
    return f"{row['tokens_per_second_min']:,.0f}..{row['tokens_per_second_max']:,.0f}"
