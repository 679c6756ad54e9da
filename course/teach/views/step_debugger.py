"""step_debugger: a slider over the phases of one decode step, with the tensors and the copied bytes of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from course.display.board import Board, Frame, Panel, table
from roseinfer.display.text_table import TextTable
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .step_record import APPEND, BEFORE, BUILD, REST, Phase, StepRecord, record_step

# What moves bytes or only cuts views, counted alike by all versions; the other ops are in the live view.
COUNTED = ("copy_", "cat", "select", "index", "index_put_")
TENSOR_COLUMNS = ["tensor", "shape", "strides", "dtype", "memory"]
WORDS = {
    BEFORE: "The cache as the last step left it, and what goes into the model: one token a sequence, each at its own "
    "position.",
    BUILD: "The cached K and V of all sequences in the form that this stage's attention reads.",
    REST: "Embedding, linear layers and norms of all layers, then the logits. The same in every stage.",
    APPEND: "The new token's K and V of every layer go into the cache.",
}
ATTENTION = "The model hands over q, k and v of the new tokens; attention joins them with the past."


def step_debugger(stage: Stage, seqs: list[Sequence]) -> Board:
    """Run one decode step of `seqs` on `stage` for real, and walk through it phase by phase.

    stage: holds every sequence, each with one token that is not cached yet, as generate.begin leaves them. They have
    one more afterwards, as after generate.decode_step. text/plain: each phase's tensors with shapes and strides, the
    bytes it copied and filled, and how often it started the ops that copy. Raises ValueError for anything but a Stage,
    and as stage.decode does.
    """
    if not isinstance(stage, Stage):
        raise ValueError(f"stage must be a Stage object that holds the sequences, got {stage!r}")
    record = record_step(stage, seqs)
    frames = [_frame(record, number) for number in range(len(record.phases))]
    return Board(frames, describe(record), "phase")


def describe(record: StepRecord) -> str:
    positions = ", ".join(f"{t.position} into block {t.block} slot {t.slot}" for t in record.new_tokens)
    phases = _without_repeats(record)
    tensors = [(name, *row) for name, phase in phases for row in _tensor_rows(phase)]
    return "\n\n".join(
        [
            f"{record.stage}: one decode step of {len(record.new_tokens)} sequences\n"
            f"new tokens at positions {positions}",
            TextTable.of(["phase", *TENSOR_COLUMNS], tensors).text(),
            TextTable.of(["phase", "copied bytes", "filled bytes", *COUNTED], _cost_rows(record, phases)).text(),
        ]
    )


def _without_repeats(record: StepRecord) -> list[tuple[str, Phase]]:
    """List the phases with their names. Attention is listed once if it is alike in all layers."""
    first, *others = [phase for phase in record.phases if phase.name.startswith("attention")]
    if not others or any(replace(phase, name=first.name) != first for phase in others):
        return [(phase.name, phase) for phase in record.phases]
    together = {first.name: "attention, each layer"}
    return [(together.get(phase.name, phase.name), phase) for phase in record.phases if phase not in others]


def _tensor_rows(phase: Phase) -> list[tuple[str, ...]]:
    return [
        (t.name, str(list(t.shape)), str(t.strides), t.dtype, t.memory + ("" if t.contiguous else ", strided"))
        for t in phase.tensors
    ]


def _cost_rows(record: StepRecord, phases: list[tuple[str, Phase]]) -> list[list[Any]]:
    rows = [_cost_row(name, [phase]) for name, phase in phases if phase.name != BEFORE]
    return [*rows, _cost_row("the whole step", record.phases)]


def _cost_row(name: str, phases: list[Phase]) -> list[Any]:
    counts = [sum(phase.ops[f"aten::{op}"] for phase in phases) for op in COUNTED]
    return [name, sum(phase.copied for phase in phases), sum(phase.filled for phase in phases), *counts]


def _frame(record: StepRecord, number: int) -> Frame:
    phase = record.phases[number]
    ops = ", ".join(f"{n} {op.removeprefix('aten::')}" for op, n in phase.ops.most_common()) or "none"
    tensors = table("Tensors (strides in elements; strided: not contiguous)", TENSOR_COLUMNS, _tensor_rows(phase))
    panels = [_costs(record, number), tensors]
    if phase.name in (BEFORE, APPEND):
        rows = [(i, t.token_id, t.position, t.block, t.slot) for i, t in enumerate(record.new_tokens)]
        panels.insert(1, table("The new tokens", ["sequence", "token id", "position", "block", "slot"], rows))
    return Frame(panels, f"{number}: {phase.name}", f"{WORDS.get(phase.name, ATTENTION)} Ops started: {ops}.")


def _costs(record: StepRecord, number: int) -> Panel:
    """Show the bytes copied in every phase; the phase on display is marked by its colour."""
    whole = sum(phase.copied for phase in record.phases)
    phases = {i: phase for i, phase in enumerate(record.phases) if phase.name != BEFORE}
    rows = [
        (p.name, f"{p.copied:,}", f"{p.filled:,}", f"{p.copied / whole if whole else 0:.0%}") for p in phases.values()
    ]
    columns = ["phase", "copied bytes", "filled bytes", "of all copied"]
    marked = [*phases].index(number) if number in phases else None
    return table(f"Bytes copied in the step: {whole:,}", columns, rows, marked)
