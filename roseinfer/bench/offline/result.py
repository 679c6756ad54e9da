"""OfflineResult: one offline race as tables for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.display.text_table import Column, TextTable

from ..peers import PEERS
from ..race_result import RaceResult, Row, against_hf, grouped
from ..settings import ENGINE, HF_NAME, QUANTIZED
from ..verdict import ratio_text, spread

KEY = ("name", "precision", "prompt_len", "batch_size")
FULL = "float32"  # what quantised weights are compared with, too
AGAINST_PEERS = f"{ENGINE} / best peer"


def rows_of(samples: Sequence[Row], floor: Callable[..., float]) -> list[Row]:
    """Make one row per contender, precision and cell: tokens a second over whole runs, and ratios of medians.

    floor(*values of KEY): the least seconds of a run. vs_hf and its verdict: against Hugging Face's generate in the
    same precision, or in fp32 where weights are quantised; None where that did not run.
    """
    runs = grouped(samples, *KEY)
    speeds = {key: [one["tokens"] / one["seconds"] for one in own] for key, own in runs.items()}
    rows = []
    for key in sorted(speeds, key=lambda key: key[2:]):
        name, precision, *cell = key
        own, speed = speeds[key], median(speeds[key])
        same, full = (speeds.get((HF_NAME, p, *cell)) for p in (FULL if precision in QUANTIZED else precision, FULL))
        rows.append(
            {
                **dict(zip(KEY, key, strict=True)),
                **spread("tokens_per_second", own),
                **against_hf(own, same),
                "vs_hf_float32": speed / median(full) if full else None,
                "floor_seconds": floor(*key),
                "floor_share": floor(*key) * speed / runs[key][0]["tokens"],
                "tokens_equal": min(one["tokens_equal"] for one in runs[key]),
            }
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class OfflineResult(RaceResult):
    """What `offline` measured.

    rows: see rows_of. samples: every run, in the order in which they were taken; began and ended are of one clock, and
    tokens_equal is the share of tokens that the fp32 reference chooses (without any contender in fp32: that the first
    one chose). machines: the measured rates from which the floors follow.
    """

    SHORT: ClassVar = (
        *KEY,
        "tokens_per_second",
        "tokens_per_second_min",
        "tokens_per_second_max",
        "vs_hf",
    )

    machines: dict[str, Any]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        """Return a table for each prompt length and precision, with one column per batch size; long: all in one."""
        return [self._long_table(width)] if long else self._tables(width)

    def _tables(self, width: int | None) -> Iterable[str]:
        a = self.arguments
        tables = grouped(self.rows, "prompt_len", "precision")
        for prompt_len, precision in product(a["prompt_lens"], a["precisions"]):
            if rows := tables.get((prompt_len, precision)):
                asked = f"{counted(a['max_tokens'], 'new token')} each, {precision}: tok/s"
                if self.is_first_token:
                    asked = f"{precision}: time to first token in ms"
                if any(row["vs_hf"] for row in rows):
                    asked += f", against {HF_NAME} in {FULL if precision in QUANTIZED else precision}"
                title = f"prompt of {counted(prompt_len, 'token')}, {asked}, share of the floor"
                yield f"{title}\n{self._table(rows).text(width)}"

    def _table(self, rows: Sequence[Row]) -> TextTable:
        batch_sizes = self.arguments["batch_sizes"]
        by_name = {name: {row["batch_size"]: row for row in own} for (name,), own in grouped(rows, "name").items()}
        lines = [[name, *(self._cell(own.get(size)) for size in batch_sizes)] for name, own in by_name.items()]
        against = [_against_peers(by_name, size) for size in batch_sizes]
        if any(against):
            lines.append([AGAINST_PEERS, *against])
        columns = [Column("contender"), *(Column(f"batch {size}", right=True) for size in batch_sizes)]
        return TextTable.of(columns, lines)

    def _cell(self, row: Row | None) -> str:
        """Format a cell such as "1,234 ×2.91 38%"; cells line up when aligned right."""
        if row is None:
            return "-"
        ratio = f" {ratio_text(row['vs_hf'], row['verdict'])}" if row["vs_hf"] else ""
        figure = f"{row['tokens_per_second']:,.0f}"
        if self.is_first_token:
            figure = f"{1e3 * row['batch_size'] / row['tokens_per_second']:,.1f}"
        return f"{figure}{ratio} {row['floor_share']:4.0%}"

    def _long_table(self, width: int | None) -> str:
        columns = [
            Column("prompt", of="prompt_len"),
            Column("batch", of="batch_size"),
            Column("precision", of="precision"),
            Column("contender", of="name"),
            Column("tok/s", "{:,.1f}".format, of="tokens_per_second"),
            Column("min..max", right=True, of=_ends),
            Column("× HF", "{:.2f}".format, of="vs_hf"),
            Column("verdict", of="verdict"),
            Column("× HF float32", "{:.2f}".format, of="vs_hf_float32"),
            Column("floor s", "{:.3f}".format, of="floor_seconds"),
            Column("of floor", "{:.1%}".format, of="floor_share"),
            Column("tokens equal", "{:.1%}".format, of="tokens_equal"),
        ]
        return TextTable.of_rows(columns, self.rows).text(width)

    @property
    def is_first_token(self) -> bool:
        """Whether a run is a prefill and nothing more, with one new token."""
        return bool(self.arguments["max_tokens"] == 1)

    def sentences(self) -> Iterator[str]:
        if self.is_first_token:
            yield "Time to first token: of a whole run of one new token each."
        else:
            yield "tok/s: of whole runs, prefill included."
        yield (
            "The floor: each step's bytes at the measured bandwidth or its operations at the measured rate, whichever "
            "takes longer."
        )
        shares = {
            name: min(row["tokens_equal"] for row in own)
            for (name, precision), own in grouped(self.rows, "name", "precision").items()
            if precision == FULL
        }
        others = ", ".join(f"{1 - share:.1%} of {name}'s" for name, share in shares.items() if share < 1)
        if others:
            others = f", but for {others} at most: two logits nearly tied, and from there on the text was another"
        if shares:
            yield f"Tokens in float32 equal the reference's{others}."


def _ends(row: Row) -> str:
    return f"{row['tokens_per_second_min']:,.1f}..{row['tokens_per_second_max']:,.1f}"


def _against_peers(by_name: dict[str, dict[int, Row]], batch_size: int) -> str:
    peers = [by_name[name][batch_size] for name in PEERS if batch_size in by_name.get(name, {})]
    own = by_name.get(ENGINE, {}).get(batch_size)
    if own is None or not peers:
        return ""
    best = max(peers, key=lambda row: row["tokens_per_second"])
    return f"{best['name']} ×{own['tokens_per_second'] / best['tokens_per_second']:.2f}"
