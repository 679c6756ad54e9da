"""The process of a rank other than 0: `main` runs the commands of rank 0, until rank 0 is gone."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from roseinfer.engine.kv_pool import KVPool
from roseinfer.engine.runner import paged_attend
from roseinfer.kernels.attention import attention_for
from roseinfer.models import Model, ModelConfig, empty_model
from roseinfer.models.weights import prepare_weights
from roseinfer.stage import PromptAttention

from .group import Group, PeerLost
from .split import sum_over_ranks

INPUTS = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables")  # of a Batch


def main(commands: Connection, rank: int, size: int, store: str, device: str, num_threads: int) -> None:
    """Run the commands of rank 0 in this process. An error is sent to rank 0, and this process ends."""
    torch.set_num_threads(num_threads)
    commands.send(None)  # the imports are done
    try:
        worker = Rank(Group(Path(store), rank, size, torch.device(device)))
        commands.send(None)  # it has met the others
        with torch.inference_mode():
            while True:
                name, args = commands.recv()
                getattr(worker, name)(*args)
    except EOFError:
        return  # rank 0 has closed, or is gone
    except PeerLost:
        wait_for_the_end(commands)  # another rank has more to tell of this
    except BaseException as error:
        report(commands, f"{type(error).__name__}: {error}")


def wait_for_the_end(commands: Connection) -> None:
    try:
        while True:
            commands.recv()
    except (EOFError, OSError):
        return


def report(commands: Connection, text: str) -> None:
    try:
        commands.send(text)
    except OSError:  # rank 0 is gone
        return


class Rank:
    """A part of a model and its KV cache. Rank 0 calls its methods by messages: see Ranks.tell."""

    def __init__(self, group: Group) -> None:
        self.group, self.device = group, group.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.model: Model
        self.pool: KVPool

    def load(self, config: ModelConfig, dtype: torch.dtype, prepared: bool) -> None:
        """Receive this rank's weights. config: the part's. prepared: its matrices get the layout for this machine."""
        weights = {}
        for name, shape in [(name, p.shape) for name, p in empty_model(config).named_parameters()]:
            received = torch.empty(shape, dtype=dtype)
            self.group.receive(received, 0)
            weights[name] = received.to(self.device)
        self.model = finished_shard(config, weights, prepared, self.group)

    def make_pool(self, num_blocks: int, block_size: int, max_num_tokens: int) -> None:
        c = self.model.config
        self.pool = KVPool(self.model, num_blocks, block_size)
        self.attention = attention_for(self.device, in_one_launch=True)
        self.attended = torch.empty(max_num_tokens, c.num_heads, c.head_dim, dtype=self.model.dtype, device=self.device)

    def forward(self, inputs: dict[str, np.ndarray], copies: dict[int, int]) -> None:
        """Run the forward of a step. Rank 0 alone computes logits."""
        if copies:
            self.pool.copy_blocks(copies)
        token_ids, positions, slots, starts, lengths, tables = (
            torch.from_numpy(inputs[name]).to(self.device) for name in INPUTS
        )
        where = slots, starts, lengths, tables
        attend = partial(paged_attend, self.attention, self.pool, where, self.attended[: len(token_ids)])
        self.model(token_ids, positions, attend)

    def prompt_forward(self, token_ids: list[int]) -> None:
        """Run the forward of a prompt without the KV cache."""
        tokens = torch.tensor(token_ids, device=self.device)
        self.model(tokens, torch.arange(len(token_ids), device=self.device), PromptAttention())

    def empty_forwards(self, sizes: list[int]) -> None:
        """Run forwards of so many tokens without attention, for rank 0, which measures their memory."""
        for num_tokens in sizes:
            zeros = torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
            self.model(zeros, zeros, lambda layer, q, k, v: q)


def finished_shard(config: ModelConfig, weights: dict[str, Tensor], prepared: bool, group: Group) -> Model:
    """Return a rank's part of a model, ready to compute. config: the part's."""
    shard = empty_model(config)
    shard.load_state_dict(weights, assign=True)
    shard.requires_grad_(False).eval()
    if prepared:
        prepare_weights(shard)
    sum_over_ranks(shard, group.all_reduce)
    return shard
