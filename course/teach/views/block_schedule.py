"""Schedule: who held which block after every step of a real run, as plain data that fits a JSON file."""

from __future__ import annotations

import json
from collections import abc
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import require_count
from roseinfer.generate import requests, stream
from roseinfer.profiling.spans import listening
from roseinfer.profiling.traces.phases import DECODE

if TYPE_CHECKING:
    from roseinfer.models import Model
    from roseinfer.sequence import SamplingParams, Sequence
    from roseinfer.stage import Stage

KINDS = {"roseinfer.prefill": "prefill", DECODE: "decode"}  # by the span of the call
FORMAT = "roseinfer schedule 1"
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

    @property
    def num_kept(self) -> int:
        """Blocks in use once the sequences that are freed have given theirs back."""
        return sum(len(held.blocks) for held in self.held if held.seq not in self.freed)


@dataclass(frozen=True)
class Schedule:
    """A run of len(prompt_lens) prompts over num_blocks blocks of block_size tokens, at most max_num_seqs at once.

    Blocks are those of the first layer; the other layers' lists say the same. Raises ValueError, naming the step,
    when the steps contradict themselves: a block outside the pool, or held twice, or too few of them.
    """

    stage: str
    num_blocks: int
    block_size: int
    max_num_seqs: int
    prompt_lens: tuple[int, ...]
    steps: tuple[ScheduleStep, ...]

    def __post_init__(self) -> None:
        for argument in ("num_blocks", "block_size", "max_num_seqs"):
            require_count(argument, getattr(self, argument), at_least=1)
        if not self.steps:
            raise ValueError("steps must hold at least one step, got none")
        for number, step in enumerate(self.steps):
            for holds, says in self._promises(step):
                if not holds:
                    raise ValueError(f"step {number}: {says}")

    def owners(self, number: int) -> list[int | None]:
        """List the sequence that holds each block in step `number`, before that step's frees; None for a free block."""
        owners: list[int | None] = [None] * self.num_blocks
        for held in self.steps[number].held:
            for block in held.blocks:
                owners[block] = held.seq
        return owners

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

    def save(self, path: str | Path) -> None:
        """Write the schedule to a JSON file; `load` gives an equal schedule."""
        data = {"format": FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Schedule:
        """Read what `save` wrote. Raises FileNotFoundError if it is missing, ValueError if it is not a schedule."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT!r}")
            steps = tuple(map(_step, data.pop("steps")))
            return cls(**{**data, "prompt_lens": tuple(data["prompt_lens"]), "steps": steps})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"path={str(path)!r} is no schedule that Schedule.save wrote: {error}") from error

    def _promises(self, step: ScheduleStep) -> Iterator[tuple[bool, str]]:
        """Yield for each promise about a step whether it holds, and what to say if it does not."""
        holders = [held.seq for held in step.held]
        blocks = [block for held in step.held for block in held.blocks]
        seqs = [*holders, *step.seqs, *step.freed]
        entries = [entry for row in step.table for entry in row]
        numbers = [*seqs, *blocks, *entries, *(held.num_tokens for held in step.held)]
        kinds, known = tuple(KINDS.values()), range(len(self.prompt_lens))
        yield step.kind in kinds, f"kind must be one of {', '.join(kinds)}, got {step.kind!r}"
        yield (
            all(type(number) is int for number in numbers),
            f"sequences, blocks and tokens must be integers, got {numbers}",
        )
        for seq in seqs:
            yield seq in known, f"sequence {seq} is none of the {len(known)} prompts"
        missing = sorted(set(seqs) - set(holders))
        yield not missing, f"sequences {missing} hold no blocks"
        inside = all(0 <= block < self.num_blocks for block in blocks)
        yield inside, f"block ids must lie in 0..{self.num_blocks - 1} (num_blocks), got {blocks}"
        once = len(set(blocks)) == len(blocks) and len(set(holders)) == len(holders)
        yield once, "a block is held twice, or a sequence is listed twice"
        for held in step.held:
            fits = held.num_tokens <= len(held.blocks) * self.block_size
            yield fits, f"{held.num_tokens} tokens of sequence {held.seq} do not fit its blocks"
        yield len(step.table) in (0, len(step.seqs)), f"table must have a row for each of {step.seqs}, or none"


def record_schedule(
    stage_class: type[Stage],
    model: Model,
    prompts: abc.Sequence[abc.Sequence[int]],
    params: SamplingParams | abc.Sequence[SamplingParams],
    *,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
) -> Schedule:
    """Run all prompts to their end on a fresh stage, and keep who held which block after each of its calls.

    params: one for all, or one a prompt. Raises ValueError for no prompts, and for what the stage or
    generate.generate refuses: a size below 1, a request that can never fit.
    """
    stage = stage_class(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
    return record_run(stage, prompts, params)


def record_run(
    stage: Stage, prompts: abc.Sequence[abc.Sequence[int]], params: SamplingParams | abc.Sequence[SamplingParams]
) -> Schedule:
    """Run all prompts to their end on a stage that holds nothing yet, and keep who held which block after each call.

    params and errors are those of record_schedule.
    """
    if not prompts:
        raise ValueError("prompts must hold at least one prompt, got none")
    recorder = _BlockRecorder(stage, requests(prompts, params))
    with listening(recorder):
        for _ in stream(stage, recorder.seqs):
            pass
    tables, lengths = stage.tables, tuple(map(len, prompts))
    steps = recorder.with_frees()
    return Schedule(stage.name, tables.num_blocks, stage.block_size, stage.max_num_seqs, lengths, steps)


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


def _step(data: dict[str, Any]) -> ScheduleStep:
    held = tuple(Held(**{**each, "blocks": tuple(each["blocks"])}) for each in data["held"])
    table = tuple(map(tuple, data.get("table", ())))
    lists = {"seqs": tuple(data["seqs"]), "held": held, "freed": tuple(data["freed"]), "table": table}
    return ScheduleStep(**data | lists)
