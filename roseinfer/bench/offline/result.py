"""OfflineResult: one offline race as tables for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable

from ..peers import PEERS
from ..provenance import where_in_full
from ..race_setting import ENGINE, HF_NAME, QUANTIZED
from ..verdict import explanation, ratio_text, runs_text, spread, verdict

Row = dict[str, Any]
FULL = "float32"  # what quantised weights are compared with, too
AGAINST_PEERS = f"{ENGINE} / best peer"


def rows_of(samples: Sequence[Row], floors: dict[tuple[str, str, int, int], float]) -> list[Row]:
    """Make one row per contender, precision and cell: tokens a second over whole runs, and ratios of medians.

    floors: seconds, by name, precision, prompt_len and batch_size. vs_hf and its verdict: against Hugging Face's
    generate in the same precision, or in fp32 where weights are quantised; None where that did not run.
    """
    speeds: dict[tuple, list[float]] = {}
    equal: dict[tuple, float] = {}
    for sample in samples:
        key = (sample["name"], sample["precision"], sample["prompt_len"], sample["batch_size"])
        speeds.setdefault(key, []).append(sample["tokens"] / sample["seconds"])
        equal[key] = min(sample["tokens_equal"], equal.get(key, 1.0))
    tokens = {(s["prompt_len"], s["batch_size"]): s["tokens"] for s in samples}
    rows = []
    for key in sorted(speeds, key=lambda key: key[2:]):
        name, precision, *cell = key
        own, speed = speeds[key], median(speeds[key])
        same, full = (speeds.get((HF_NAME, p, *cell)) for p in (FULL if precision in QUANTIZED else precision, FULL))
        rows.append(
            {
                "name": name,
                "precision": precision,
                "prompt_len": cell[0],
                "batch_size": cell[1],
                **spread("tokens_per_second", own),
                "vs_hf": speed / median(same) if same else None,
                "verdict": verdict(same, own) if same and same is not own else None,
                "vs_hf_float32": speed / median(full) if full else None,
                "floor_seconds": floors[key],
                "floor_share": floors[key] * speed / tokens[tuple(cell)],
                "tokens_equal": equal[key],
            }
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class OfflineResult(MachineResult):
    """What `offline` measured.

    rows: see rows_of. samples: every run, in the order in which they were taken; began and ended are of one clock, and
    tokens_equal is the share of tokens that the fp32 reference chooses (without any contender in fp32: that the first
    one chose). machines: the measured rates from which the floors follow. left_out: the contenders that did not run,
    and why.
    """

    SHORT: ClassVar = (
        "name",
        "precision",
        "prompt_len",
        "batch_size",
        "tokens_per_second",
        "tokens_per_second_min",
        "tokens_per_second_max",
        "vs_hf",
    )

    SHORT_FIELDS: ClassVar = (*MachineResult.SHORT_FIELDS, "left_out")

    machines: dict[str, Any]
    left_out: dict[str, str]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        """Return a table for each prompt length and precision, with one column per batch size; long: all in one."""
        return [self._long_table(width)] if long else self._tables(width)

    def notes(self) -> list[str]:
        return [self.note]

    def _tables(self, width: int | None) -> Iterable[str]:
        a = self.arguments
        for prompt_len in a["prompt_lens"]:
            for precision in a["precisions"]:
                rows = [r for r in self.rows if (r["prompt_len"], r["precision"]) == (prompt_len, precision)]
                if not rows:
                    continue
                asked = f"{counted(a['max_tokens'], 'new token')} each, {precision}: tok/s"
                if self.is_first_token:
                    asked = f"{precision}: time to first token in ms"
                if any(row["vs_hf"] for row in rows):
                    asked += f", against {HF_NAME} in {FULL if precision in QUANTIZED else precision}"
                title = f"prompt of {counted(prompt_len, 'token')}, {asked}, share of the floor"
                yield f"{title}\n{self._table(rows).text(width)}"

    def _table(self, rows: Sequence[Row]) -> TextTable:
        batch_sizes = self.arguments["batch_sizes"]
        by_name: dict[str, dict[int, Row]] = {}
        for row in rows:
            by_name.setdefault(row["name"], {})[row["batch_size"]] = row
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

    @property
    def note(self) -> str:
        a, repeats = self.arguments, self.arguments["repeats"]
        measured = "tok/s: of whole runs, prefill included"
        if self.is_first_token:
            measured = "Time to first token: of a whole run of one new token each"
        text = (
            f"{a['model']} on {where_in_full(self)}. {runs_text(repeats)} each; the table has the median. {measured}; "
            f"~ in place of ×: the ranges overlap. {explanation(repeats)} The "
            "floor: each step's bytes at the measured bandwidth or its operations at the measured rate, whichever "
            "takes longer. "
        )
        text += self._on_tokens + self._on_drafts
        by_reason: dict[str, list[str]] = {}
        for who, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(who)
        return text + " ".join(f"{', '.join(who)} left out: {reason}." for reason, who in by_reason.items())

    @property
    def _on_drafts(self) -> str:
        """Say what became of drafts, by batch size; nothing where no engine drafts."""
        if not (drafting := self.arguments.get("speculative")):
            return ""
        parts = []
        for size in self.arguments["batch_sizes"]:
            own = [sample for sample in self.samples if sample["batch_size"] == size and "drafted" in sample]
            drafted, accepted, tokens = (sum(one[key] for one in own) for key in ("drafted", "accepted", "tokens"))
            share = f"{accepted / drafted:.0%} of {drafted / len(own):,.0f}" if drafted else "of none"
            given = f", {accepted / tokens:.0%} of its tokens" if drafted else ""
            parts.append(f"batch {size} {share}{given}")
        return f"Drafts by {drafting['method']} that were accepted in a run that drafts: {'; '.join(parts)}. "

    @property
    def _on_tokens(self) -> str:
        shares: dict[str, float] = {}
        for row in self.rows:
            if row["precision"] == FULL:
                shares[row["name"]] = min(row["tokens_equal"], shares.get(row["name"], 1.0))
        others = ", ".join(f"{1 - share:.1%} of {name}'s" for name, share in shares.items() if share < 1)
        if not shares:
            return ""
        if not others:
            return "Tokens in float32 equal the reference's. "
        return (
            f"Tokens in float32 equal the reference's, but for {others} at most: two logits nearly tied, and from "
            "there on the text was another. "
        )


def _ends(row: Row) -> str:
    return f"{row['tokens_per_second_min']:,.1f}..{row['tokens_per_second_max']:,.1f}"


def _against_peers(by_name: dict[str, dict[int, Row]], batch_size: int) -> str:
    peers = [by_name[name][batch_size] for name in PEERS if batch_size in by_name.get(name, {})]
    own = by_name.get(ENGINE, {}).get(batch_size)
    if own is None or not peers:
        return ""
    best = max(peers, key=lambda row: row["tokens_per_second"])
    return f"{best['name']} ×{own['tokens_per_second'] / best['tokens_per_second']:.2f}"
