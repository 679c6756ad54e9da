"""Promises about errors: a call that breaks in the middle loses nothing, counts nothing, and can be made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from roseinfer.generate import generate, stream
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..broken_promises import require_all_free, require_one_owner, require_tokens
from ..injected_errors import ErrorAt, OutOfMemory, attempt, num_operations, where_raised
from ..making import stage_of
from ..small_models import expected, prompts_for, text_of
from ..teacher_forced import TeacherForced
from .tokens import greedy

ERRORS = (KeyboardInterrupt, OutOfMemory)
STREAMED = 10  # operations of a whole run at which an error is tried
# Operations of a decode step, or a prefill, at which one is tried; drawn where there are more.
FEW, MOST = 12, 240
MODEL = "two layers"
Call = Callable[[ErrorAt], None]


def errors_free_everything(stage_class: type[Stage], device: str) -> None:
    """Check that an error from outside, anywhere in a run of two requests, ends the run and frees all blocks."""
    stage = stage_of(stage_class, "gpt2", device, num_blocks=8)
    total = num_operations(lambda: list(_started(stage)))
    for i in range(STREAMED):
        injection = ErrorAt(ERRORS[i % 2], i * total // STREAMED)
        tokens = _started(stage)
        attempt(lambda: list(tokens), injection)  # noqa: B023
        after = f"after a {where_raised(injection)}"
        require_all_free(stage, after)
        seqs = generate(stage, prompts_for("gpt2", (2,)), greedy(3))
        require_tokens(seqs, expected("gpt2", (2,), 3, device), f"{after}, the reference")


def _started(stage: Stage) -> Iterator[tuple[Sequence, int]]:
    """Start a run of two requests and take its first token."""
    tokens = stream(stage, [Sequence(prompt, greedy(9)) for prompt in prompts_for("gpt2", (3, 5))])
    next(tokens)
    return tokens


def failed_steps(stage_class: type[Stage], device: str) -> None:
    """Check that a call that fails in the model can be repeated: some layers saw its tokens, none was appended."""
    _fail_at(FEW, _Failing(stage_class, device), _in_the_model)


def errors_anywhere(stage_class: type[Stage], device: str) -> None:
    """Check errors at any operation of a step, including those of append, and of a prefill."""
    _fail_at(MOST, _Failing(stage_class, device), _all_operations)


def _fail_at(most: int, run: _Failing, operations: Callable[[Stage, Call], range]) -> None:
    """Let calls fail at `most` of these operations at most, then end the run."""
    for call in (run.decode_fails, run.prefill_fails):
        found = operations(run.stage, call)
        for i, at in enumerate(sorted(Random(0).sample(found, min(most, len(found))))):
            call(ErrorAt(ERRORS[i % 2], at))
    run.end(run.seqs)


def _all_operations(stage: Stage, call: Call) -> range:
    counter = ErrorAt(OutOfMemory, at=None)
    call(counter)
    return range(counter.seen)


def _in_the_model(stage: Stage, call: Call) -> range:
    """Find the operations of the call's forward; none for a stage whose step is no forward of the model."""
    counter = ErrorAt(OutOfMemory, at=None)
    begins: list[int] = []
    ends: list[int] = []
    hooks = (
        stage.model.register_forward_pre_hook(lambda *_: begins.append(counter.seen)),
        stage.model.register_forward_hook(lambda *_: ends.append(counter.seen)),
    )
    try:
        call(counter)
    finally:
        for hook in hooks:
            hook.remove()
    forwards = zip(begins, ends, strict=True)
    return next((range(begin, end) for begin, end in forwards if begin < end), range(0))


class _Failing(TeacherForced):
    """Three sequences in small blocks. Each call fails once, must leave all counts as before, and is repeated."""

    def __init__(self, stage_class: type[Stage], device: str) -> None:
        super().__init__(stage_class, device, MODEL, num_blocks=150, block_size=4, max_num_seqs=4)
        self.seqs: list[Sequence] = []

    def decode_fails(self, injection: ErrorAt) -> None:
        if not self.seqs or len(self.seqs[0]) > 10:  # over two edges of blocks
            self.end(self.seqs)
            self.seqs = self.begin((1, 6), 12)
        self.give_tokens(self.seqs)
        before = [seq.num_cached_tokens for seq in self.seqs]
        logits = attempt(lambda: self.stage.decode(list(self.seqs)), injection)
        again = f"a step made again after a {where_raised(injection)}: "
        if logits is not None:
            return self.judge(logits, self.seqs, "a step that went on ")
        after = [seq.num_cached_tokens for seq in self.seqs]
        assert after == before, f"{again}its sequences had {before} tokens cached before the error, {after} after it"
        require_one_owner(self.stage.tables)
        self.decode(self.seqs, again)

    def prefill_fails(self, injection: ErrorAt) -> None:
        text = text_of(MODEL, 12, seed=50)
        seq, free = Sequence(list(text[:9]), SamplingParams(max_tokens=1)), self.stage.num_free_blocks
        logits = attempt(lambda: self.stage.prefill(seq), injection)
        again = f"a prefill made again after a {where_raised(injection)}: "
        if logits is None:
            assert not self.stage.holds(seq), f"{again}the sequence was held already"
            left = seq.num_cached_tokens, self.stage.num_free_blocks
            assert left == (0, free), f"{again}cached tokens and free blocks were {left} after it, not {(0, free)}"
            self.prefill_again(seq, text, again)
        self.texts[seq.seq_id] = text
        self.decode([seq], again)
        self.free(seq)
