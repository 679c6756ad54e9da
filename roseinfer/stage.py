"""The one seam of the course: what every stage promises, and the three named phases of a decode step.

Stages differ in how the KV cache is kept and in how one decode step is run. A stage fills in four methods:

    build(seqs) -> step            the cache as attention wants it (a gather, or block tables)
    step(layer, q, k, v)           attention of one layer, called by the model; keeps the new k and v
    append(seqs, step)             write the new token's K and V of every layer into the cache
    write_prompt(seq, layer, k, v) write a whole prompt's K and V
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.arguments import require_count
from roseinfer.blocks import BLOCK_SIZE, BlockTables
from roseinfer.models import Attend, Model
from roseinfer.profiling import span
from roseinfer.sampling import sample
from roseinfer.sequence import Sequence


class Stage(ABC):
    """A KV cache, and the decode step over it.

    Args:
        model: from load_model.
        num_blocks: blocks of the pool, in each layer.
        block_size: tokens of a block.
        max_num_seqs: sequences that the stage holds at once.

    Raises ValueError for a size below 1, and blocks.OutOfBlocks when the pool cannot take what is asked.
    """

    name: ClassVar[str]
    is_one_function: bool = False  # whether a decode step is one compiled function, with no products to time apart
    num_processes: int = 1  # that compute a step together: their threads wait for each other, on a quiet machine too
    tokens_per_step: int = 1  # new tokens that a sequence gets from one step of a queue, at most

    def __init_subclass__(cls) -> None:
        cls.name = cls.__dict__.get("name", cls.__name__)

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = BLOCK_SIZE, max_num_seqs: int = 64) -> None:
        for arg, value in (
            ("num_blocks", num_blocks),
            ("block_size", block_size),
            ("max_num_seqs", max_num_seqs),
        ):
            require_count(arg, value, at_least=1)
        self.model = model
        self.config = model.config
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.tables = BlockTables(self.config.num_layers, num_blocks, block_size)

    @classmethod
    def why_untimed(cls, device: torch.device) -> str | None:
        """Say in one line why times of this stage on that device would mean nothing. None: they can be measured."""
        return None

    # What callers use.

    @torch.inference_mode()
    def prefill(self, seq: Sequence) -> Tensor:
        """Cache all tokens of a sequence, and return the logits [V] of the last one. The caller samples and appends.

        Raises ValueError when the stage holds it already, is full, or can never fit it; OutOfBlocks when the pool is
        short now. On any error nothing of the sequence stays behind.
        """
        with span("roseinfer.prefill"), self.claimed([seq]):
            return self.prompt_logits(seq)

    @torch.inference_mode()
    def decode(self, seqs: list[Sequence]) -> Tensor:
        """Cache each sequence's last token and return the logits [B, V] that follow it; row i belongs to seqs[i].

        Raises ValueError for a sequence that is not held, named twice, or has no new token; OutOfBlocks before
        anything is written.
        """
        self._check_decodable(seqs)
        with span("roseinfer.decode_step_sessions.total"):
            self.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
            token_ids, positions = self.inputs(seqs)
            step = self.build(seqs)
            with span("roseinfer.model.forward"):
                logits = self.model.logits(self.model(token_ids, positions, step))
            with span("roseinfer.kv.append_token"):
                self.append(seqs, step)
            for seq in seqs:
                seq.num_cached_tokens += 1
        return logits

    def first_tokens(self, seqs: list[Sequence]) -> list[int]:
        """Prefill every sequence and choose the token that follows it; the caller appends.

        Raises as prefill and sample do, and then no sequence stays behind.
        """
        tokens, begun = [], []
        try:
            for seq in seqs:
                logits = self.prefill(seq).unsqueeze(0)
                begun.append(seq)
                tokens += sample(logits, [seq])
        except BaseException:
            for seq in begun:
                self.free(seq)
            raise
        return tokens

    def next_tokens(self, seqs: list[Sequence]) -> list[int]:
        """Run a decode step and choose a token for each row; the caller appends. Raises as decode does."""
        return sample(self.decode(seqs), seqs)

    def free(self, seq: Sequence) -> None:
        """Give back all blocks of a sequence. Raises ValueError if the stage does not hold it."""
        if seq.seq_id not in self.tables:
            raise ValueError(f"sequence {seq.seq_id} is not held by {self.name}: never prefilled, or freed already")
        self.tables.free(seq.seq_id)
        seq.num_cached_tokens = 0

    def holds(self, seq: Sequence) -> bool:
        return seq.seq_id in self.tables

    @property
    def num_free_blocks(self) -> int:
        return self.tables.num_free

    @contextmanager
    def claimed(self, seqs: list[Sequence]) -> Iterator[None]:
        """Claim blocks for prompts that are prefilled inside: all become cached, or none after an error."""
        for seq in seqs:
            self.check_fits(seq)
            if seq.seq_id in self.tables:
                raise ValueError(f"sequence {seq.seq_id} is already held by {self.name}: decode it, or free it first")
        if len({seq.seq_id for seq in seqs}) != len(seqs):
            raise ValueError(f"seqs names a sequence twice: {[seq.seq_id for seq in seqs]}")
        if len(self.tables) + len(seqs) > self.max_num_seqs:
            held = f"{self.name} already holds max_num_seqs={self.max_num_seqs} sequences"
            raise ValueError(f"{held}: free one first")
        try:
            self.tables.reserve({seq.seq_id: len(seq) for seq in seqs})
            yield
            for seq in seqs:
                seq.num_cached_tokens = len(seq)
        except BaseException:
            for seq in seqs:
                if seq.seq_id in self.tables:
                    self.free(seq)
            raise

    def check_fits(self, seq: Sequence) -> None:
        """Check a sequence. Raises ValueError if it could never run to its max_tokens here, however empty the pool."""
        check_fits(seq, self.config.vocab_size, self.config.max_model_len, self.tables)

    def inputs(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Return token_ids [B] and positions [B] of a decode step, on the model's device."""
        device = self.model.device
        token_ids = torch.tensor([seq.last_token_id for seq in seqs], device=device)
        return token_ids, torch.tensor(self.positions(seqs), device=device)

    def positions(self, seqs: list[Sequence]) -> list[int]:
        """Return the position of each sequence's input token: the number of its own cached tokens."""
        return [seq.num_cached_tokens for seq in seqs]

    # What a stage fills in.

    def prompt_logits(self, seq: Sequence) -> Tensor:
        """Return the logits [V] of a prompt's last token, and write K and V of all its tokens to its blocks."""
        attend = PromptAttention()
        token_ids = torch.tensor(seq.token_ids, device=self.model.device)
        positions = torch.arange(len(seq), device=self.model.device)
        with span("roseinfer.model.forward"):
            logits = self.model.logits(self.model(token_ids, positions, attend)[-1:])[0]
        for layer, (k, v) in enumerate(attend.keys_values):
            self.write_prompt(seq, layer, k, v)
        return logits

    @abstractmethod
    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [N, H_kv, D] of a prompt into the sequence's blocks of that layer, from its first token on."""

    @abstractmethod
    def build(self, seqs: list[Sequence]) -> Attend:
        """Return the cached K and V of all sequences in the form that this stage's attention reads."""

    @abstractmethod
    def append(self, seqs: list[Sequence], step: Any) -> None:
        """Write every layer's K and V of the new tokens, which `step` kept, into the cache. step: from `build`."""

    def _check_decodable(self, seqs: list[Sequence]) -> None:
        if not seqs:
            raise ValueError("seqs must name at least one sequence, got an empty list")
        if len({seq.seq_id for seq in seqs}) != len(seqs):
            raise ValueError(f"seqs names a sequence twice: {[seq.seq_id for seq in seqs]}")
        for seq in seqs:
            if seq.seq_id not in self.tables:
                raise ValueError(f"sequence {seq.seq_id} is not held by {self.name}: prefill it first")
            if len(seq) != seq.num_cached_tokens + 1:
                raise ValueError(
                    f"sequence {seq.seq_id} has {len(seq)} tokens and {seq.num_cached_tokens} cached: decode wants "
                    "exactly one new token; append the sampled token before each step"
                )
            if len(seq) > self.config.max_model_len:
                raise ValueError(
                    f"sequence {seq.seq_id} has {len(seq)} tokens, max_model_len={self.config.max_model_len}"
                )


class Pool(Protocol):
    """Base of BlockTables and of the engine's BlockManager: a number of blocks, block_size tokens each."""

    num_blocks: int
    block_size: int

    def blocks_for(self, num_tokens: int) -> int: ...


class TooLong(ValueError):
    """A request with more tokens than there is room for."""


def check_fits(seq: Sequence, vocab_size: int, max_model_len: int, tables: Pool) -> None:
    """Check a sequence. Raises ValueError if it could never run to its max_tokens, however empty the pool.

    The error is TooLong, unless the sequence has a token that the model does not have.
    """
    asked = f"prompt of {seq.num_prompt_tokens} + max_tokens={seq.params.max_tokens}"
    longest = max(len(seq), seq.max_len)
    if longest > max_model_len:
        raise TooLong(f"{asked} is {longest} tokens, allowed: max_model_len={max_model_len}")
    if max(seq.token_ids) >= vocab_size:
        raise ValueError(f"token id {max(seq.token_ids)} is out of range: vocab_size={vocab_size}")
    needed = tables.blocks_for(longest - 1)  # the last token is returned, never cached
    if needed > tables.num_blocks:
        raise TooLong(
            f"{asked} needs {needed} blocks of {tables.block_size} tokens, allowed: num_blocks={tables.num_blocks}"
        )


class PromptAttention:
    """Causal attention of one prompt over itself. Keeps k and v [N, H_kv, D] of every layer for the cache."""

    def __init__(self) -> None:
        self.keys_values: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys_values.append((k, v))
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, H, N, D]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)
