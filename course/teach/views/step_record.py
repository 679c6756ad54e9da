"""record_step: one decode step of any stage, phase by phase: its tensors, the bytes it copies, the ops it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from roseinfer.models import Attend
from roseinfer.profiling import bytes_copied, span, stage_ops, trace_once
from roseinfer.sampling import sample
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .stage_calls import calls_through
from .tensor_facts import Memory, TensorFacts

BEFORE, BUILD, REST, APPEND = "before", "build", "forward, the rest", "append"


@dataclass
class Phase:
    """What one phase left: its tensors, bytes copied and filled, and op counts that are alike on every device."""

    name: str
    tensors: list[TensorFacts] = field(default_factory=list)
    copied: int = 0
    filled: int = 0
    ops: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class StoredToken:
    """New token of a sequence, and where its K and V went: its position, and the block and slot in the first layer."""

    token_id: int
    position: int
    block: int
    slot: int


@dataclass(frozen=True)
class StepRecord:
    """One decode step. phases: before, build, attention of each layer, the rest of the forward, append."""

    stage: str
    new_tokens: list[StoredToken]
    phases: list[Phase]


def record_step(stage: Stage, seqs: list[Sequence]) -> StepRecord:
    """Decode a token for each of `seqs`, which `stage` holds, and append what is sampled, as generate.decode_step does.

    The step is computed twice, because counting bytes takes ops apart, which would change the op counts. The second
    time writes the same K and V to the same slots. Raises ValueError as stage.decode does, and for a stage that replays
    a graph.
    """
    ops = _count_ops(stage, seqs)
    for seq in seqs:
        seq.num_cached_tokens -= 1
    if BUILD not in ops:
        raise ValueError(f"stage={stage.name} replays its step as a whole, which has no phases: look at an earlier one")
    watch = _Watch(stage)
    moved = bytes_copied(lambda: watch.decode(seqs))
    rest, phases = watch.phases[REST], list(watch.phases.values())
    rest.copied, rest.filled = (
        moved.copied - sum(p.copied for p in phases),
        moved.filled - sum(p.filled for p in phases),
    )
    for phase in phases:
        phase.ops = ops[phase.name]
    new_tokens = [_stored_token(stage, seq) for seq in seqs]
    for seq, token_id in zip(seqs, sample(watch.logits, seqs), strict=True):
        seq.append(token_id)
    return StepRecord(stage.name, new_tokens, phases)


def attention_of(layer: int) -> str:
    return f"attention, layer {layer}"


def _stored_token(stage: Stage, seq: Sequence) -> StoredToken:
    position = seq.num_cached_tokens - 1
    index, slot = divmod(position, stage.block_size)
    return StoredToken(seq.last_token_id, position, stage.tables.of(seq.seq_id, 0)[index], slot)


def _phase_of(method: str, arguments: tuple[Any, ...]) -> str:
    return {"build": BUILD, "append": APPEND}.get(method) or attention_of(arguments[0])


def _count_ops(stage: Stage, seqs: list[Sequence]) -> dict[str, Counter[str]]:
    """Count ops by phase. The rest of the forward has the ops that are in no other phase."""
    names: list[str] = []

    def named(method: str, work: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        names.append(_phase_of(method, arguments))
        with span(names[-1]):
            return work()

    with calls_through(stage, named):
        trace = trace_once(lambda: stage.decode(seqs))
    counts = {name: stage_ops(trace, name) for name in names}
    rest = stage_ops(trace) - sum(counts.values(), Counter())
    return {**counts, REST: rest, BEFORE: Counter()}


class _Watch:
    """Counts the bytes of a step's phases, and looks at the tensors that each leaves."""

    def __init__(self, stage: Stage) -> None:
        layers = map(attention_of, range(stage.config.num_layers))
        self.phases = {name: Phase(name) for name in (BEFORE, BUILD, *layers, REST, APPEND)}
        self.stage = stage
        self.step: Attend | None = None
        self.kept: dict[str, list[Any]] = {}  # the step's lists that its calls made longer
        self.memory = Memory()
        self.logits: Tensor  # of the latest decode
        self._look(BEFORE, _attributes(stage))

    def decode(self, seqs: list[Sequence]) -> None:
        model = self.stage.model
        with (
            model.register_forward_pre_hook(
                lambda _, inputs: self._look(BEFORE, dict(zip(("token_ids", "positions"), inputs, strict=False)))
            ),
            model.register_forward_hook(lambda _, inputs, hidden: self._look(REST, {"hidden": hidden})),
            calls_through(self.stage, self._measure),
        ):
            self.logits = self.stage.decode(seqs)
        self._look(REST, {"logits": self.logits})

    def _measure(self, method: str, work: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        phase, results, lengths = _phase_of(method, arguments), [], self._lengths()
        moved = bytes_copied(lambda: results.append(work()))
        self.phases[phase].copied, self.phases[phase].filled = moved.copied, moved.filled
        if method == "build":
            self.step = results[0]
            self._look(phase, _attributes(self.step))
        elif method == "append":
            self._look(phase, self.kept | _attributes(self.stage))
        else:
            longer = [name for name, length in self._lengths().items() if length > lengths.get(name, 0)]
            self.kept |= {name: getattr(self.step, name) for name in longer}
            new = {f"{name}[layer]": getattr(self.step, name)[-1] for name in longer}
            self._look(phase, dict(zip(("q", "k", "v"), arguments[1:], strict=True)) | {"out": results[0]} | new)
        return results[0]

    def _lengths(self) -> dict[str, int]:
        """Return the lengths of the lists that the step holds."""
        return {name: len(value) for name, value in _attributes(self.step).items() if isinstance(value, list)}

    def _look(self, phase: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.phases[phase].tensors += self.memory.facts(name, value)


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object, by name; a plain function has none."""
    return dict(getattr(thing, "__dict__", {}))
