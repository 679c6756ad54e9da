"""Drives the requests in a stage's queue from outside and checks what every add, step and abort changes."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from roseinfer.arguments import counted
from roseinfer.models import Model
from roseinfer.reference import reference_logits
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence, finish_reason
from roseinfer.stage import Stage

from ..broken_promises import refused
from ..injected_errors import ErrorAt
from ..making import stage_of
from ..small_models import model_of

BUDGET, POLICY = "max_num_batched_tokens", "policy"
PATIENCE = 4  # steps for each token that the requests have in the end: preemption computes some of them again


def has_queue(stage_class: type) -> bool:
    return all(hasattr(stage_class, name) for name in ("add", "step", "abort", "has_work"))


def takes(stage_class: type, argument: str) -> bool:
    """Tell whether a constructor of the class, or of a base class, has that argument."""
    makers = [vars(cls)["__init__"] for cls in stage_class.__mro__ if "__init__" in vars(cls)]
    return any(argument in inspect.signature(make).parameters for make in makers)


class Queue:
    """A stage on the model of that name, and the requests that were added to it.

    budget: tokens in one step, if the stage takes such an argument. own: a model instead of a copy of the named one.
    """

    def __init__(
        self,
        stage_class: type[Stage],
        device: str,
        model: str = "gpt2",
        *,
        budget: int | None = None,
        own: Model | None = None,
        **sizes: Any,
    ) -> None:
        self.model, self.device = model, device
        self.budget = budget if takes(stage_class, BUDGET) else None
        if self.budget:
            sizes[BUDGET] = budget
        self.stage: Any = stage_of(stage_class, own or model, device, **sizes)
        self.seqs: list[Sequence] = []

    def add(
        self, prompt: list[int], max_tokens: int, *, priority: int = 0, parent: Sequence | None = None, **wishes: Any
    ) -> Sequence:
        params = SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True} | wishes)
        seq = Sequence(list(prompt), params, priority, parent)
        self.stage.add(seq)
        self.seqs.append(seq)
        assert self.stage.has_work, f"{self.name(seq)} was added, and has_work is False"
        return seq

    def step(self) -> list[Sequence]:
        lengths = [len(seq) for seq in self.seqs]
        ended = [bool(seq.finish_reason) for seq in self.seqs]
        done = self.stage.step()
        for seq, length, had_ended in zip(self.seqs, lengths, ended, strict=True):
            grown = len(seq) - length
            assert not (grown and had_ended), f"{self.name(seq)} had ended, and a step gives it another token"
            most = self.stage.tokens_per_step
            expected = "one at most" if most == 1 else f"{most} at most"
            assert 0 <= grown <= most, f"{self.name(seq)} has {grown:+} tokens after one step, expected {expected}"
            times = sum(other is seq for other in done)
            # A stage may return a sequence that ended with an error, so that its caller sees the end.
            failed = seq.finish_reason == "error" and not had_ended
            returned = f"step returned {self.name(seq)} {counted(times, 'time')}"
            assert times == bool(grown) or (failed and times == 1), f"{returned}; its new tokens: {grown}"
        self.require_books()
        return done

    def steps(self, number: int) -> None:
        for _ in range(number):
            if self.stage.has_work:
                self.step()

    def failing_step(self, injection: ErrorAt) -> None:
        """Run a step that meets an error. An asynchronous device may report the error in the step after it."""
        for context in (injection, nullcontext()):
            try:
                with context:
                    self.step()
            except injection.error:
                self.require_books()
                return
            if not injection.raised or not self.stage.has_work:
                return

    def abort(self, seq: Sequence) -> None:
        self.stage.abort(seq)
        assert seq.finish_reason == "abort", f"{self.name(seq)} was aborted: finish_reason={seq.finish_reason!r}"
        self.require_books()
        with refused(f"aborting {self.name(seq)} a second time"):
            self.stage.abort(seq)

    def patience(self) -> Iterator[int]:
        """Yield a number for each step while there are requests. Raises AssertionError if they never end."""
        most = PATIENCE * sum(seq.max_len for seq in self.seqs) + 20
        for number in range(most):
            if not self.stage.has_work:
                return
            yield number
        assert not self.stage.has_work, f"after {most} steps some of {len(self.seqs)} requests are still not done"

    def run_out(self) -> None:
        """Run until all requests have ended, then check every token, and that every block is free."""
        for _ in self.patience():
            self.step()
        for seq in self.seqs:
            self.judge(seq)
        free, total, held = self.stage.num_free_blocks, self.stage.tables.num_blocks, len(self.stage.tables)
        assert (free, held) == (total, 0), (
            f"with every request ended, {free} of {total} blocks are free and {counted(held, 'sequence')} held"
        )
        with refused("a step without work"):
            self.stage.step()

    def run_out_twice(self) -> None:
        """Run out, then run one more request that takes every block, as far as the model has positions."""
        self.run_out()
        tables = self.stage.tables
        most = min(tables.num_blocks * tables.block_size, self.stage.config.max_model_len - 1)
        self.add([(7 * i + 3) % 97 for i in range(most - 1)], 2)
        self.run_out()

    def judge(self, seq: Sequence) -> None:
        """Check that a request that has ended has the reference's tokens, and that it ended where it had to."""
        made = counted(len(seq.output_ids), "new token")
        assert seq.finish_reason, f"{self.name(seq)} is lost: has_work is False, and it has {made}"
        right = right_tokens(self.model, tuple(seq.token_ids), seq.num_prompt_tokens, seq.params, self.device)
        for i, (token, expected) in enumerate(zip(seq.output_ids, right, strict=True)):
            assert token == expected, f"{self.name(seq)}: token {i} is {token}, expected {expected}"
        self.judge_end(seq)

    def judge_end(self, seq: Sequence) -> None:
        """Check that it has no token after the one that ends it, and that this token fits finish_reason."""
        part, reason = Sequence(seq.token_ids[: seq.num_prompt_tokens], seq.params), None
        for i, token in enumerate(seq.output_ids):
            assert not reason, f"{self.name(seq)}: token {i - 1} ends it ({reason}), and it has more"
            part.append(token)
            reason = finish_reason(part, self.stage.config.eos_token_ids)
        assert seq.finish_reason in ("abort", "error", reason), (
            f"{self.name(seq)}, {counted(len(seq.output_ids), 'new token')}: finish_reason is {seq.finish_reason!r}, "
            f"expected {reason!r}"
        )

    def require_books(self) -> None:
        """Require that each block is free once, or held, and by no ended sequence. Sequences may share a block."""
        tables = self.stage.tables
        names = {seq.seq_id: self.name(seq) for seq in self.seqs}
        for seq in self.seqs:
            ended_and_held = seq.finish_reason and seq.seq_id in tables
            assert not ended_and_held, f"{self.name(seq)} has ended ({seq.finish_reason}), and still holds blocks"
        for table in range(tables.num_tables):
            free = Counter(tables.free_blocks(table))
            held = {block: names.get(at, "another") for at in tables.seq_ids for block in tables.of(at, table)}
            for block in range(tables.num_blocks):
                assert free[block] < 2, f"block {block} is free twice"
                assert block in held or free[block], f"block {block} is lost: neither free nor held by a sequence"
                assert not (block in held and free[block]), f"block {block} is free, and {held[block]} holds it"

    def name(self, seq: Sequence) -> str:
        number = next((i for i, other in enumerate(self.seqs) if other is seq), len(self.seqs))
        return f"request {number} (prompt of {counted(seq.num_prompt_tokens, 'token')})"


@lru_cache(maxsize=20_000)
def right_tokens(
    model: str, text: tuple[int, ...], num_prompt: int, params: SamplingParams, device: str
) -> tuple[int, ...]:
    """Return the right token for each place after the prompt, from one forward of the reference over the text."""
    if len(text) == num_prompt:
        return ()
    logits = reference_logits(model_of(model, device), list(text[:-1]))[num_prompt - 1 :]
    return tuple(sample(logits, [Sequence(list(text[:end]), params) for end in range(num_prompt, len(text))]))
