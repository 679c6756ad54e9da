"""What shows that a stage is really wrong, with code of its own: plain runs beside the cache-free reference.

Nothing here comes from the contract's promises, which are what is tried with it; only models are borrowed. A
demonstration is called with a stage class and returns what went wrong in words, "" when nothing did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course.contract.making import copy_of
from course.contract.small_models import model_of, prompts_of
from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import stream
from roseinfer.reference import reference_logits
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

Demonstration = Callable[[type[Stage]], str]


@lru_cache(maxsize=2_000)
def right_token(model: str, text: tuple[int, ...]) -> int:
    return int(reference_logits(model_of(model, "cpu"), list(text))[-1].argmax())


def demonstration(run: Callable[..., None]) -> Callable[..., Demonstration]:
    """Make run(stage_class, ...), which raises what is wrong, a function of its other arguments that gives a
    Demonstration."""

    @wraps(run)
    def of(*args: Any, **options: Any) -> Demonstration:
        def shows(stage_class: type[Stage]) -> str:
            try:
                run(stage_class, *args, **options)
            except Exception as error:  # a run that ought to go well and does not is wrong too
                return f"{type(error).__name__}: {error}"
            return ""

        return shows

    return of


class Engine:
    """Runs sequences greedily, and fails on the first token that is not the reference's."""

    def __init__(self, stage_class: type[Stage], model: str, **sizes: int) -> None:
        self.model, self.stage = model, stage_class(copy_of(model, "cpu"), **sizes)

    def prefill(self, seq: Sequence) -> None:
        self.take([seq], self.stage.prefill(seq).unsqueeze(0))

    def step(self, seqs: list[Sequence]) -> None:
        self.take(seqs, self.stage.decode(seqs))

    def take(self, seqs: list[Sequence], logits: torch.Tensor) -> None:
        for i, (row, seq) in enumerate(zip(logits, seqs, strict=True)):
            token, right = int(row.argmax()), right_token(self.model, tuple(seq.token_ids))
            assert token == right, f"row {i}, after {len(seq)} tokens: token {token}, expected {right}"
            seq.append(right)

    def end(self, seqs: list[Sequence]) -> None:
        for seq in seqs:
            self.stage.free(seq)
        self.stage.tables.check()
        free, total = self.stage.num_free_blocks, self.stage.tables.num_blocks
        assert free == total, f"{free} of {total} blocks are free with every sequence freed"


@demonstration
def run(stage_class, lengths: list[int], num_steps: int, model: str = "gpt2", high: int = 0, **sizes: int) -> None:
    """One batch of these prompts, then steps of all of them. high: so many of the first block ids are held back."""
    engine = Engine(stage_class, model, **{"num_blocks": 64 + high, "max_num_seqs": 300} | sizes)
    if high:
        engine.stage.tables.reserve({-1: high * engine.stage.block_size})
    seqs = new_sequences(lengths, engine.stage.config.vocab_size)
    for seq in seqs:
        engine.prefill(seq)
    for _ in range(num_steps):
        engine.step(seqs)
    if high:
        engine.stage.tables.free(-1)
    engine.end(seqs)


@demonstration
def script(stage_class, calls: str, model: str = "gpt2", **sizes: int) -> None:
    """Calls in order, on sequences named by letters.

    "+a9": a is new, with a prompt of 9 tokens. "+a": a is prefilled again, with its output. "-a": a is freed.
    "ab": a step of a and b. "ab*3": three of them. "?ab": a step that has to be refused for want of blocks.
    "?+b9": a prompt that has to be. "!ab", "!+b9": an error after the model; "!3ab": three operations
    later.
    """
    engine = Engine(stage_class, model, **{"num_blocks": 12, "block_size": 4} | sizes)
    live: dict[str, Sequence] = {}
    for seed, call in enumerate(calls.split()):
        _make(engine, live, call, seed)
    engine.end([seq for seq in live.values() if engine.stage.holds(seq)])


def _make(engine: Engine, live: dict[str, Sequence], call: str, seed: int) -> None:
    sign, name = call[0], call[1:2]
    if sign == "+":
        if length := call[2:]:
            [prompt] = prompts_of([int(length)], engine.stage.config.vocab_size, seed)
            live[name] = Sequence(prompt, SamplingParams(max_tokens=1))
        engine.prefill(live[name])
    elif sign == "-":
        engine.stage.free(live[name])
    elif sign == "?":
        with suppress(OutOfBlocks):
            _call(engine, live, call[1:], seed)
            raise AssertionError(f"{call} was not refused")
    elif sign == "!":
        rest, made = call.lstrip("!0123456789"), None
        with suppress(Injected), ErrorBehindModel(engine.stage, int(call[1 : -len(rest)] or 0)):
            made = _call(engine, live, rest, seed)
        if made:  # the error would have come later
            engine.take(*made)
    else:
        names, _, times = call.partition("*")
        for _ in range(int(times or 1)):
            engine.step([live[name] for name in names])


def _call(engine: Engine, live: dict[str, Sequence], call: str, seed: int) -> tuple[list[Sequence], torch.Tensor]:
    """The call alone: its tokens are not looked at, nor appended."""
    if call[0] == "+":
        [prompt] = prompts_of([int(call[2:])], engine.stage.config.vocab_size, seed)
        live[call[1]] = Sequence(prompt, SamplingParams(max_tokens=1))
        return [live[call[1]]], engine.stage.prefill(live[call[1]]).unsqueeze(0)
    seqs = [live[name] for name in call]
    return seqs, engine.stage.decode(seqs)


class Injected(RuntimeError):
    """As a device out of memory raises one."""


class ErrorBehindModel(TorchDispatchMode):
    def __init__(self, stage: Stage, after: int) -> None:
        super().__init__()
        self.left = None
        self.hook = stage.model.register_forward_hook(lambda *_: self.start(after))

    def start(self, after: int) -> None:
        self.left = after
        if not after:
            raise Injected

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.left and func.namespace == "aten":  # a span's begin and end are operations too
            self.left -= 1
            if not self.left:
                raise Injected
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: object) -> None:
        self.hook.remove()
        super().__exit__(*error)


@demonstration
def rearranged(stage_class) -> None:
    """By brute force: a sequence of three blocks comes into every three of five blocks, in every order, and is decoded.
    It is the same one for as long as its blocks are three."""
    engine = Engine(stage_class, "gpt2", num_blocks=5, block_size=16)
    prompt, *fill = prompts_of([33] + [16] * 5, 97, seed=3)
    moves = Sequence(prompt, SamplingParams(max_tokens=1))
    arrangements = list(itertools.permutations(range(5), 3))
    for blocks in arrangements[::7] + arrangements[::3] + arrangements:
        fillers = [Sequence(tokens, SamplingParams(max_tokens=1)) for tokens in fill]
        for seq in fillers:
            engine.prefill(seq)
        by_block = {engine.stage.tables.of(seq.seq_id, 0)[0]: seq for seq in fillers}
        for block in [b for b in range(5) if b not in blocks] + list(reversed(blocks)):
            engine.stage.free(by_block[block])
        if len(moves) > 46:
            moves = Sequence(prompt, SamplingParams(max_tokens=1))
        engine.prefill(moves)
        engine.step([moves])
        engine.stage.free(moves)


def fails_anywhere(stage_class: type[Stage]) -> str:
    """By brute force: an error at each of the operations after the model's forward, and the step made again."""
    return next(filter(None, (script(f"+a3 +b6 !{n}ab ab*3")(stage_class) for n in range(60))), "")


@demonstration
def side_by_side(stage_class) -> None:
    """Two stages of the class, each with a sequence, in turn."""
    engines = [Engine(stage_class, "gpt2", num_blocks=4) for _ in range(2)]
    pairs = list(zip(engines, new_sequences([9, 9]), strict=True))
    for engine, seq in pairs:
        engine.prefill(seq)
    for engine, seq in pairs * 3:
        engine.step([seq])


@demonstration
def callers_list(stage_class) -> None:
    """The caller pairs the rows with the list as it was when he gave it, as an engine does."""
    engine, seqs = Engine(stage_class, "gpt2", num_blocks=8), new_sequences([3, 9, 5])
    for seq in seqs:
        engine.prefill(seq)
    for i in range(8):
        batch = seqs[::-1] if i % 2 else list(seqs)
        engine.take(list(batch), engine.stage.decode(batch))


@demonstration
def logits_kept(stage_class) -> None:
    """A row of logits is read again after the next step."""
    engine, [seq] = Engine(stage_class, "gpt2", num_blocks=8), new_sequences([3])
    engine.prefill(seq)
    for _ in range(8):
        kept = engine.stage.decode([seq])
        token = int(kept[0].argmax())
        seq.append(token)
        engine.step([seq])
        assert int(kept[0].argmax()) == token, f"after {len(seq)} tokens: the token is another one now"


@demonstration
def dies_midway(stage_class) -> None:
    """A request for which the model has too few positions is refused before it runs, or breaks when it gets there."""
    [prompt] = prompts_of([44], 97, seed=7)
    stage, made = stage_class(copy_of("groups of 3", "cpu"), num_blocks=4), []
    with suppress(ValueError, IndexError):
        for _, token in stream(stage, [Sequence(prompt, SamplingParams(max_tokens=3, ignore_eos=True))]):
            made.append(token)
    assert not made, f"it broke after {len(made)} tokens"


def new_sequences(lengths: list[int], vocab_size: int = 97) -> list[Sequence]:
    return [Sequence(prompt, SamplingParams(max_tokens=1)) for prompt in prompts_of(lengths, vocab_size, seed=7)]
