"""The promise that is a search: random schedules of calls on a stage, and the shortest one that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Literal

import torch
from torch import Tensor

from roseinfer.arguments import counted
from roseinfer.blocks import OutOfBlocks
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .broken_promises import lengths_text, require_all_free, require_one_owner
from .making import copy_of, stage_of
from .shortest_case import Case, require_none_breaks, told
from .small_models import SMALL, last_logits

NUM_CASES, NUM_CALLS = 22, 25
NUM_BLOCKS, BLOCK_SIZE = 9, 4
NAMES = "ABCD"  # as many sequences at once
TOLERANCE = 1e-3

Kind = Literal["prefill", "decode", "free"]


@dataclass(frozen=True)
class StageCall:
    """One call. names: its sequence, or all of a decode. tokens: a prefill's prompt, or a decode's one new token."""

    kind: Kind
    names: tuple[str, ...]
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageCase(Case):
    """A schedule of StageCalls on the model of that name in small_models.MAKERS."""

    model: str


def random_case(seed: int) -> StageCase:
    rng = Random(seed)
    return StageCase(rng.choice(SMALL), calls=tuple(_random_call(rng) for _ in range(NUM_CALLS)))


def _random_call(rng: Random) -> StageCall:
    kinds: tuple[Kind, ...] = ("prefill", "decode", "free")
    kind = rng.choices(kinds, weights=(5, 4, 1))[0]  # few frees: the pool is to run short
    names = rng.sample(NAMES, k=rng.randint(1, len(NAMES)) if kind == "decode" else 1)
    num_tokens = {"prefill": rng.randint(1, 11), "decode": 1, "free": 0}[kind]
    return StageCall(kind, tuple(names), tuple(rng.randrange(97) for _ in range(num_tokens)))


def random_schedules(stage_class: type[Stage], device: str) -> None:
    models = cache(partial(copy_of, device=device))  # a copy for all stages of the search
    require_none_breaks(
        map(random_case, range(NUM_CASES)), lambda case: what_breaks(stage_class, device, case, models(case.model))
    )


def what_breaks(stage_class: type[Stage], device: str, case: StageCase, model: Model) -> AssertionError | None:
    """Play the schedule on a fresh stage of the model and return the first error; None if there is none."""
    made = [f"model {case.model}, {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens"]
    try:
        play = Play(stage_class, device, case.model, model, made)
        for call in case.calls:
            play.take(call)
            play.require_books()
        play.free_all()
    except Exception as error:
        return told(f"the shortest schedule found: {'; '.join(made)}", error)
    return None


class Play:
    """Plays the calls that make sense, so that it can play any part of a schedule; checks logits by the reference.

    made: gets the text of each call that is made.
    """

    def __init__(self, stage_class: type[Stage], device: str, name: str, model: Model, made: list[str]) -> None:
        self.model, self.device, self.made = name, device, made
        self.live: dict[str, Sequence] = {}
        self.stage = stage_of(
            stage_class, model, device, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=len(NAMES)
        )

    def take(self, call: StageCall) -> None:
        live = [name for name in call.names if name in self.live]
        if call.kind == "prefill" and not live:
            [name] = call.names
            self.made.append(f"prefill {name}, a prompt of {counted(len(call.tokens), 'token')}")
            self.prefill(name, call.tokens)
        elif call.kind == "decode" and live:
            self.made.append(f"decode {', '.join(live)}")
            self.decode(live, *call.tokens)
        elif call.kind == "free" and live:
            self.made.append(f"free {', '.join(live)}")
            self.stage.free(self.live.pop(*live))

    def prefill(self, name: str, prompt: tuple[int, ...]) -> None:
        seq = Sequence(list(prompt), SamplingParams(max_tokens=1))
        try:
            logits = self.stage.prefill(seq)
        except OutOfBlocks:
            assert not self.stage.holds(seq), f"the pool is short for {name}, and the stage holds it all the same"
            assert seq.num_cached_tokens == 0, f"the pool is short for {name}, and its tokens count as cached"
            return
        self.live[name] = seq
        self.require_logits(logits, name)

    def decode(self, names: list[str], token: int) -> None:
        seqs = [self.live[name] for name in names]
        for i, seq in enumerate(seqs):
            if len(seq) == seq.num_cached_tokens:
                seq.append((token + i) % 97)
        before = [seq.num_cached_tokens for seq in seqs]
        try:
            logits = self.stage.decode(seqs)
        except OutOfBlocks:
            after = [seq.num_cached_tokens for seq in seqs]
            assert after == before, f"the pool is short, and cached tokens went from {before} to {after}"
            return
        for row, name in zip(logits, names, strict=True):
            self.require_logits(row, name)

    def require_logits(self, got: Tensor, name: str) -> None:
        want = last_logits(self.model, tuple(self.live[name].token_ids), self.device)
        close = torch.allclose(got, want, atol=TOLERANCE, rtol=TOLERANCE)
        assert close, f"the logits of {name} are not the reference's"

    def require_books(self) -> None:
        require_one_owner(self.stage.tables)
        lengths = [seq.num_cached_tokens for seq in self.live.values()]
        free, used = self.stage.num_free_blocks, sum(map(self.stage.tables.blocks_for, lengths))
        assert free <= NUM_BLOCKS - used, (
            f"{counted(free, 'block', 'is/are')} free with {lengths_text(lengths)} tokens cached"
        )

    def free_all(self) -> None:
        for seq in self.live.values():
            self.stage.free(seq)
        require_all_free(self.stage, "with every sequence freed")
