"""The five pieces of an engine, and how pieces of a learner and pieces of the course make one class.

A piece is a class derived from the course's stage of its lesson. Python's order of inheritance makes them one engine:

    MyPrefixCache  PrefixCache  MyScheduler  TokenBudget  ...  MyStep  FusedStep  MyOneTable  OneTable  Stage

A learner's class stands right before the stage whose place it takes, so a piece that is not there is the course's.
The attention of the block table is handed over: from lesson 10 on it reads a flat batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from roseinfer.cli.repository import stages_package
from roseinfer.models import Model
from roseinfer.stage import Stage

Attention = Callable[..., Tensor]
stages: Any = stages_package()


@dataclass(frozen=True)
class Piece:
    """A piece of an engine.

    exercise_id: of the exercise that keeps it. name: of its file, without .py. title: what it is. course: the stage
    whose place it takes. methods: those that it has to bring itself.
    """

    exercise_id: str
    name: str
    title: str
    course: type[Stage]
    methods: tuple[str, ...]


BLOCKS = Piece(
    "05.4", "block_table", "the block table and its attention", stages.BlockTable,
    ("write_prompt", "build_block_tables", "append", "attention"),
)  # fmt: skip
SCHEDULER = Piece(
    "14.5", "scheduler", "the scheduler with a budget", stages.TokenBudget,
    ("add", "abort", "step", "schedule", "make_room", "preempt", "admit", "run", "commit"),
)  # fmt: skip
PIECES = (
    BLOCKS,
    Piece("10.4", "one_table", "one table with slots", stages.OneTable, ("write_inputs", "write_tables")),
    Piece("11.5", "step", "the step that chooses tokens", stages.FusedStep, ("first_tokens", "next_tokens", "choose")),
    SCHEDULER,
    Piece("15.5", "prefix_cache", "the prefix cache", stages.PrefixCache, ("find", "admit", "commit")),
)


def piece_of(exercise_id: str) -> Piece:
    return next(piece for piece in PIECES if piece.exercise_id == exercise_id)


def assembled(own: Mapping[str, type[Stage]], last: Piece = PIECES[-1], module: str = __name__) -> type[Stage]:
    """Return an engine of these pieces, and of the course's where there is none.

    own: maps the name of a piece to its class. last: the last piece that the engine has, such as the scheduler of an
    engine without a prefix cache. module: to be named in its errors.
    """
    above = [piece for piece in PIECES[1:] if piece.exercise_id <= last.exercise_id]
    bases = [own.get(piece.name, piece.course) for piece in reversed(above)]
    members: dict[str, Any] = {"name": "my_engine", "__module__": module}
    if BLOCKS.name in own:
        bases.insert(0, OwnAttention)
        members["own_attention"] = staticmethod(own[BLOCKS.name].attention)  # type: ignore[attr-defined]
    engine = type("MyEngine", tuple(bases), members)
    for name in ("decode", "next_tokens"):  # those of stage 13 replay the course's step, whatever pieces are there
        defined = (vars(cls)[name] for cls in engine.__mro__ if cls is not stages.Graphs and name in vars(cls))
        setattr(engine, name, next(defined))
    return engine


class OwnAttention(stages.OneTable):
    """An engine whose attention is that of a block table. own_attention: as BlockTable.attention."""

    own_attention: ClassVar[Attention]

    def __init__(self, model: Model, **sizes: Any) -> None:
        super().__init__(model, **sizes)
        self.attention = over_a_flat_batch(self.own_attention)


def over_a_flat_batch(attention: Attention) -> Attention:
    """Make the attention of stage 10 out of that of stage 05: each token of the batch becomes a row of its own."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, query_start: Tensor,
        context_lens: Tensor, block_tables: Tensor, out: Tensor,
    ) -> Tensor:  # fmt: skip
        # 1. Write K and V of all tokens to their slots: the later tokens of a prompt read those of the earlier ones.
        size = k_cache.size(2)
        blocks, offsets = slot_mapping.long() // size, slot_mapping.long() % size
        k_cache[blocks, :, offsets] = k
        v_cache[blocks, :, offsets] = v
        # 2. Find the sequence of each token, and how many tokens come before it there.
        num_new = query_start.diff().long()
        row = torch.repeat_interleave(torch.arange(len(num_new), device=q.device), num_new)
        before = context_lens[row] - query_start[1:][row] + torch.arange(len(q), device=q.device)
        # 3. A token attends to the tokens before it, which are cached, and to itself.
        used = -(-int(context_lens.max()) // size)
        caches = k_cache.transpose(1, 2), v_cache.transpose(1, 2)  # [num_blocks, block_size, H_kv, D], not copied
        return out.copy_(attention(q, k, v, *caches, block_tables[row, :used], before.int()))

    return attend


def without_the_course(piece: Piece, answer: type[Stage]) -> type[Stage]:
    """Return the answer on a stage that lacks what the piece has to bring: super() skips the course's methods."""

    def skipped(name: str) -> Callable[..., Any]:
        def below(self: Stage, *arguments: Any) -> Any:
            method = getattr(super(piece.course, self), name, None)
            if method is None:
                raise NotImplementedError(f"{name} is what you have to write, and super() has none here")
            return method(*arguments)

        return below

    course = type(piece.course.__name__, (piece.course,), {name: skipped(name) for name in piece.methods})
    return type(answer.__name__, (answer, course), {"__module__": answer.__module__})
