"""Schedule: who held which block after every step of a real run."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roseinfer.generate import requests, stream
from roseinfer.profiling.spans import listening
from roseinfer.profiling.traces.phases import DECODE

if TYPE_CHECKING:
    from roseinfer.sequence import SamplingParams, Sequence
    from roseinfer.stage import Stage

KINDS = {"roseinfer.prefill": "prefill", DECODE: "decode"}  # by the span of the call
LAYER = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Holding of sequence `seq` (its number among the prompts): its cached tokens, and its blocks in token order."""

    seq: int
    num_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One call of the stage. held: the blocks of each sequence after it. freed: sequences that give theirs back next.

    seqs: sequences that got a token. table: the block table that attention was given, a row for each of seqs; () if
    none.
    """

    kind: str
    seqs: tuple[int, ...]
    held: tuple[Held, ...]
    freed: tuple[int, ...]
    table: tuple[tuple[int, ...], ...] = ()

    @property
    def num_blocks(self) -> int:
        """Blocks in use after this call, before the frees."""
        return sum(len(held.blocks) for held in self.held)


@dataclass(frozen=True)
class Schedule:
    """A run of num_seqs prompts over num_blocks blocks of block_size tokens.

    Blocks are those of the first layer; the other layers' lists say the same.
    """

    num_blocks: int
    block_size: int
    num_seqs: int
    steps: tuple[ScheduleStep, ...]

    def taken(self, number: int) -> dict[int, int | None]:
        """Map each block that step `number` took from the pool to the sequence that held it before, or None."""
        last: dict[int, int] = {}
        kept: dict[int, int] = {}  # block -> who held it when the step began
        for step in self.steps[:number]:
            kept = {block: held.seq for held in step.held if held.seq not in step.freed for block in held.blocks}
            last |= {block: held.seq for held in step.held for block in held.blocks}
        blocks = [(block, held.seq) for held in self.steps[number].held for block in held.blocks]
        return {block: last.get(block) for block, seq in blocks if kept.get(block) != seq}

    @property
    def num_reused(self) -> int:
        """How often a sequence took a block that another one had before."""
        return sum(before is not None for n in range(len(self.steps)) for before in self.taken(n).values())


def record_run(
    stage: Stage, prompts: abc.Sequence[abc.Sequence[int]], params: SamplingParams | abc.Sequence[SamplingParams]
) -> Schedule:
    """Run all prompts to their end on a stage that holds nothing yet, and keep who held which block after each call.

    params: one for all, or one a prompt. Raises ValueError for no prompts, and for what generate.generate refuses.
    """
    if not prompts:
        raise ValueError("prompts must hold at least one prompt, got none")
    recorder = _BlockRecorder(stage, requests(prompts, params))
    with listening(recorder):
        for _ in stream(stage, recorder.seqs):
            pass
    return Schedule(stage.tables.num_blocks, stage.block_size, len(prompts), recorder.with_frees())


class _BlockRecorder:
    """Records which blocks each sequence holds, at the end of each prefill and each decode step of `stage`."""

    def __init__(self, stage: Any, seqs: list[Sequence]) -> None:
        self.stage, self.seqs = stage, seqs
        self.steps: list[ScheduleStep] = []

    def enter(self, name: str) -> None:
        pass

    def exit(self, name: str) -> None:
        kind = KINDS.get(name)
        if kind is None:
            return
        before = {held.seq: held.num_tokens for held in self.steps[-1].held} if self.steps else {}
        held = tuple(self._held())
        seqs = tuple(one.seq for one in held if one.num_tokens != before.get(one.seq))
        table = self._table(seqs) if kind == "decode" else ()
        self.steps.append(ScheduleStep(kind, seqs, held, (), table))

    def with_frees(self) -> tuple[ScheduleStep, ...]:
        """Return the steps of a run that is over. A sequence without blocks at the end of the next step was freed."""
        later = [{held.seq for held in step.held} for step in self.steps[1:]] + [{held.seq for held in self._held()}]
        return tuple(
            replace(step, freed=tuple(held.seq for held in step.held if held.seq not in still))
            for step, still in zip(self.steps, later, strict=True)
        )

    def _held(self) -> Iterator[Held]:
        for number, seq in enumerate(self.seqs):
            if self.stage.holds(seq):
                yield Held(number, seq.num_cached_tokens, tuple(self.stage.tables.of(seq.seq_id, LAYER)))

    def _table(self, seqs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Read the table from the device buffer, as attention was given it: as wide as the longest sequence needs."""
        stage, running = self.stage, [self.seqs[number] for number in seqs]
        if hasattr(stage, "tables_of"):
            table = stage.tables_of(stage.device_buffer, running)[LAYER]
        elif hasattr(stage, "inputs_on_device"):  # one table for all layers
            table = stage.inputs_on_device["block_tables"][: len(running)]
        else:
            return ()
        used = stage.tables.blocks_for(max(seq.num_cached_tokens for seq in running))
        return tuple(map(tuple, table[:, :used].tolist()))
