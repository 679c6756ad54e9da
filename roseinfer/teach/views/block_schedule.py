"""Schedule: who held which block after every step of a real run, as plain data that fits a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import require_count
from roseinfer.generate import generate

if TYPE_CHECKING:
    from torch import Tensor

    from roseinfer.models import Model
    from roseinfer.sequence import SamplingParams, Sequence
    from roseinfer.stage import Stage

KINDS = ("prefill", "decode")
FORMAT = "roseinfer schedule 1"


@dataclass(frozen=True, slots=True)
class Held:
    """What sequence `seq` (its number among the prompts) holds: its cached tokens, and its blocks in token order."""

    seq: int
    num_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One call of the stage. seqs: who got a token. held: who holds what then. freed: who gives all of it back next."""

    kind: str
    seqs: tuple[int, ...]
    held: tuple[Held, ...]
    freed: tuple[int, ...]


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
            self._check(number, step)

    def owners(self, number: int) -> list[int | None]:
        """Who holds each block in step `number`, before that step's frees."""
        owners: list[int | None] = [None] * self.num_blocks
        for held in self.steps[number].held:
            for block in held.blocks:
                owners[block] = held.seq
        return owners

    def taken(self, number: int) -> dict[int, int | None]:
        """Blocks that step `number` took from the pool, each with the last one who held it before (None: nobody)."""
        last = {block: held.seq for step in self.steps[:number] for held in step.held for block in held.blocks}
        kept = self._kept(number)
        owners = enumerate(self.owners(number))
        return {block: last.get(block) for block, owner in owners if owner is not None and kept.get(block) != owner}

    def _kept(self, number: int) -> dict[int, int]:
        """Block -> who held it when step `number` began."""
        if number == 0:
            return {}
        before = self.steps[number - 1]
        return {block: held.seq for held in before.held if held.seq not in before.freed for block in held.blocks}

    def save(self, path: str | Path) -> None:
        """Write *.json; `load` gives an equal schedule."""
        data = {"format": FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Schedule:
        """Read what `save` wrote. FileNotFoundError if missing, ValueError if it is no schedule."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT!r}")
            steps = tuple(map(_step, data.pop("steps")))
            return cls(**{**data, "prompt_lens": tuple(data["prompt_lens"]), "steps": steps})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"path={str(path)!r} is no schedule that Schedule.save wrote: {error}") from error

    def _check(self, number: int, step: ScheduleStep) -> None:
        where = f"step {number}"
        if step.kind not in KINDS:
            raise ValueError(f"{where}: kind must be one of {', '.join(KINDS)}, got {step.kind!r}")
        holders = [held.seq for held in step.held]
        blocks = [block for held in step.held for block in held.blocks]
        numbers = [*holders, *blocks, *step.seqs, *step.freed, *(held.num_tokens for held in step.held)]
        if any(type(number) is not int for number in numbers):
            raise ValueError(f"{where}: sequences, blocks and tokens must be integers, got {numbers}")
        for seq in (*holders, *step.seqs, *step.freed):
            if not 0 <= seq < len(self.prompt_lens):
                raise ValueError(f"{where}: sequence {seq} is none of the {len(self.prompt_lens)} prompts")
        if missing := (set(step.seqs) | set(step.freed)) - set(holders):
            raise ValueError(f"{where}: sequences {sorted(missing)} hold no blocks")
        if any(not 0 <= block < self.num_blocks for block in blocks):
            raise ValueError(f"{where}: block ids must lie in 0..{self.num_blocks - 1} (num_blocks), got {blocks}")
        if len(set(blocks)) != len(blocks) or len(set(holders)) != len(holders):
            raise ValueError(f"{where}: a block is held twice, or a sequence is listed twice")
        for held in step.held:
            if held.num_tokens > len(held.blocks) * self.block_size:
                raise ValueError(f"{where}: {held.num_tokens} tokens of sequence {held.seq} do not fit its blocks")


def record_schedule(
    stage_class: type[Stage],
    model: Model,
    prompts: List[List[int]],
    params: SamplingParams | List[SamplingParams],
    *,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
) -> Schedule:
    """Run all prompts to their end on a fresh stage, and keep who held which block after each of its calls.

    params: one for all, or one a prompt. Raises ValueError for no prompts, and for what the stage or
    generate.generate refuses: a size below 1, a request that can never fit.
    """
    if not prompts:
        raise ValueError("prompts must hold at least one prompt, got none")
    stage = stage_class(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
    recorder = _Recorder(stage)
    generate(recorder, prompts, params)
    lengths = tuple(map(len, prompts))
    return Schedule(stage_class.name, num_blocks, block_size, max_num_seqs, lengths, tuple(recorder.steps))


class _Recorder:
    """A stage to whoever drives it; each prefill and each decode leaves a step."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.steps: list[ScheduleStep] = []
        self.seqs: list[Sequence] = []  # by number: prompts are prefilled in their order

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def prefill(self, seq: Sequence) -> Tensor:
        logits = self.stage.prefill(seq)
        self.seqs.append(seq)
        self._keep("prefill", [seq])
        return logits

    def decode(self, seqs: list[Sequence]) -> Tensor:
        logits = self.stage.decode(seqs)
        self._keep("decode", seqs)
        return logits

    def free(self, seq: Sequence) -> None:
        self.stage.free(seq)
        last = self.steps[-1]
        self.steps[-1] = ScheduleStep(last.kind, last.seqs, last.held, (*last.freed, self.seqs.index(seq)))

    def _keep(self, kind: str, seqs: list[Sequence]) -> None:
        held = tuple(
            Held(number, seq.num_cached_tokens, tuple(self.stage.tables.of(seq.seq_id, 0)))
            for number, seq in enumerate(self.seqs)
            if self.stage.holds(seq)
        )
        self.steps.append(ScheduleStep(kind, tuple(map(self.seqs.index, seqs)), held, ()))


def _step(data: dict[str, Any]) -> ScheduleStep:
    held = tuple(Held(**{**each, "blocks": tuple(each["blocks"])}) for each in data["held"])
    return ScheduleStep(**{**data, "seqs": tuple(data["seqs"]), "held": held, "freed": tuple(data["freed"])})
