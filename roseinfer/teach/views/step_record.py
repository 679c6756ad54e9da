"""record_step: one decode step of any stage, phase by phase: its tensors, the bytes it copies, the ops it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from roseinfer.models import Attend
from roseinfer.profiling import MODEL_OPS, bytes_copied, span, trace_once
from roseinfer.sampling import sample
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .tensor_facts import Memory, TensorFacts

BEFORE, BUILD, REST, APPEND = "before", "build", "forward, the rest", "append"
Look = Callable[[Any], dict[str, Any]]  # a phase's result -> what there is to look at, by name
Run = Callable[[str, Callable[[], Any], Look], Any]  # runs a phase: its name, its work, where to look afterwards


@dataclass
class Phase:
    """What one phase left: its tensors, bytes copied and filled, and op counts without what the model's ops start."""

    name: str
    tensors: list[TensorFacts] = field(default_factory=list)
    copied: int = 0
    filled: int = 0
    ops: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Place:
    """Where a sequence's new token went: its position, and the block and slot in the first layer."""

    token_id: int
    position: int
    block: int
    slot: int


@dataclass(frozen=True)
class StepRecord:
    """One decode step. phases: before, build, attention of each layer, the rest of the forward, append."""

    stage: str
    places: list[Place]
    phases: list[Phase]


def record_step(stage: Stage, seqs: list[Sequence]) -> StepRecord:
    """Decode a token for each of `seqs`, which `stage` holds, and append what is sampled, as generate.decode_step does.

    The step is computed twice, for counting bytes takes ops apart, which would change the op counts; the second time
    writes the same K and V to the same slots. Raises ValueError as stage.decode does.
    """
    ops = _count_ops(stage, seqs)
    for seq in seqs:
        seq.num_cached_tokens -= 1
    watch = _Watch(stage)
    moved = bytes_copied(lambda: watch.decode(seqs))
    rest, phases = watch.phases[REST], list(watch.phases.values())
    rest.copied, rest.filled = (
        moved.copied - sum(p.copied for p in phases),
        moved.filled - sum(p.filled for p in phases),
    )
    for phase in phases:
        phase.ops = ops[phase.name]
    places = [_place(stage, seq) for seq in seqs]
    for seq, token_id in zip(seqs, sample(watch.logits, seqs), strict=True):
        seq.append(token_id)
    return StepRecord(stage.name, places, phases)


def attention_of(layer: int) -> str:
    return f"attention, layer {layer}"


def _place(stage: Stage, seq: Sequence) -> Place:
    position = seq.num_cached_tokens - 1
    index, slot = divmod(position, stage.block_size)
    return Place(seq.last_token_id, position, stage.tables.of(seq.seq_id, 0)[index], slot)


def _count_ops(stage: Stage, seqs: list[Sequence]) -> dict[str, Counter[str]]:
    """By phase. The rest of the forward has what is in no other phase."""
    names: list[str] = []

    def run(name: str, work: Callable[[], Any], look: Look) -> Any:
        names.append(name)
        with span(name):
            return work()

    with _phases_through(stage, run):
        trace = trace_once(lambda: stage.decode(seqs))
    counts = {name: trace.op_counts(name, outside=MODEL_OPS) for name in names}
    rest = trace.op_counts(outside=MODEL_OPS) - sum(counts.values(), Counter())
    return {**counts, REST: rest, BEFORE: Counter()}


class _Watch:
    """Counts the bytes of a step's phases, and looks at the tensors that each leaves."""

    def __init__(self, stage: Stage) -> None:
        layers = map(attention_of, range(stage.config.num_layers))
        self.phases = {name: Phase(name) for name in (BEFORE, BUILD, *layers, REST, APPEND)}
        self.stage = stage
        self.memory = Memory()
        self.logits: Tensor | None = None
        self._look(BEFORE, _attributes(stage))

    def decode(self, seqs: list[Sequence]) -> None:
        model = self.stage.model
        hooks = [
            model.register_forward_pre_hook(
                lambda _, inputs: self._look(BEFORE, {"token_ids": inputs[0], "positions": inputs[1]})
            ),
            model.register_forward_hook(lambda _, inputs, hidden: self._look(REST, {"hidden": hidden})),
        ]
        try:
            with _phases_through(self.stage, self._run):
                self.logits = self.stage.decode(seqs)
        finally:
            for hook in hooks:
                hook.remove()
        self._look(REST, {"logits": self.logits})

    def _run(self, name: str, work: Callable[[], Any], look: Look) -> Any:
        phase, results = self.phases[name], []
        moved = bytes_copied(lambda: results.append(work()))
        phase.copied, phase.filled = moved.copied, moved.filled
        self._look(name, look(results[0]))
        return results[0]

    def _look(self, phase: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.phases[phase].tensors += self.memory.facts(name, value)


@contextmanager
def _phases_through(stage: Stage, run: Run) -> Iterator[None]:
    """Until it is left, the phases of this one object's steps go through `run`."""
    build, append = stage.build, stage.append

    def watched_build(seqs: list[Sequence]) -> _Attention:
        return _Attention(run(BUILD, lambda: build(seqs), _attributes), run)

    def watched_append(seqs: list[Sequence], step: _Attention) -> None:
        run(APPEND, lambda: append(seqs, step.inner), lambda _: step.kept | _attributes(stage))

    stage.build, stage.append = watched_build, watched_append
    try:
        yield
    finally:
        del stage.build, stage.append


class _Attention:
    """What build made, with each layer's call as a phase of its own. kept: its lists that the calls made longer."""

    def __init__(self, inner: Attend, run: Run) -> None:
        self.inner = inner
        self.run = run
        self.kept: dict[str, list[Any]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = {name: len(values) for name, values in _lists(self.inner).items()}

        def look(out: Tensor) -> dict[str, Any]:
            longer = {n: values for n, values in _lists(self.inner).items() if len(values) > before.get(n, 0)}
            self.kept |= longer
            return {"q": q, "k": k, "v": v, "out": out} | {f"{n}[layer]": values[-1] for n, values in longer.items()}

        return self.run(attention_of(layer), lambda: self.inner(layer, q, k, v), look)


def _attributes(thing: Any) -> dict[str, Any]:
    """None for a plain function."""
    return dict(getattr(thing, "__dict__", {}))


def _lists(step: Attend) -> dict[str, list[Any]]:
    return {name: value for name, value in _attributes(step).items() if isinstance(value, list)}
