"""Which part of each weight a rank has: Megatron's split (Shoeybi et al., "Megatron-LM", 2019).

In each half of a block the first matrix is split by its output rows and the second one by its input columns. (Megatron
writes x @ A with the transposed matrices, so the same halves are called "column parallel" and "row parallel".) A rank
computes its heads, or its part of the MLP, from the first matrix to the second on its own; then one sum over all
ranks, an all-reduce, gives each of them the result. That is two all-reduces a layer.

Norms, embeddings and the output matrix are whole on each rank. vLLM and Megatron split the vocabulary, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from roseinfer.models import GPT2, Llama, Model, ModelConfig, empty_model

AllReduce = Callable[[Tensor], Tensor]
QKV = ("c_attn", "qkv_proj")
GATE_UP, UP = "gate_up_proj", "c_fc"
SUMMED = ("c_proj", "o_proj", "down_proj")  # what they give is a part of a sum


def shard_config(config: ModelConfig, size: int) -> ModelConfig:
    """Return the shape of one of `size` ranks: its heads and its part of the MLP.

    Raises ValueError where a number does not divide.
    """
    for name in ("num_heads", "num_kv_heads", "intermediate_size"):
        if getattr(config, name) % size:
            raise ValueError(
                f"tensor_parallel_size={size} must divide the model's {name}={getattr(config, name)}: each rank has an "
                "equal part"
            )
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=config.num_kv_heads // size,
        intermediate_size=config.intermediate_size // size,
    )


def check_whole(model: Model) -> None:
    """Raise ValueError for a model that cannot be split."""
    if type(model) not in (GPT2, Llama):
        raise ValueError(f"model must be a GPT2 or a Llama to be split, got {type(model).__name__}")
    names = {name for name, _ in model.named_parameters()}
    if names != {name for name, _ in empty_model(model.config).named_parameters()}:
        raise ValueError("model was prepared before, and its weights are in another layout: load it again")


def shard_weights(model: Model, rank: int, size: int) -> Iterator[tuple[str, Tensor]]:
    """Yield names and values of a rank's weights, in the order of its parameters."""
    for name, weight in model.named_parameters():
        yield name, shard_of(name, weight.detach(), model.config, rank, size).contiguous()


def shard_of(name: str, weight: Tensor, config: ModelConfig, rank: int, size: int) -> Tensor:
    """Return a rank's part of the weight or bias of that name."""
    module = name.split(".")[-2]
    if module in SUMMED:
        if name.endswith("bias"):  # it is added once, not by each rank
            return weight if rank == 0 else torch.zeros_like(weight)
        return weight.chunk(size, dim=1)[rank]
    parts = output_parts(module, config)
    if parts is None:
        return weight
    return torch.cat([part.chunk(size)[rank] for part in weight.split(parts)])


def output_parts(module: str, config: ModelConfig) -> list[int] | None:
    """Return the rows of each matrix that is joined in this one; None for a module that is not split.

    A rank has its share of each. A cut through the joined matrix would give one rank all of q, and another one k and v.
    """
    if module in QKV:
        return [count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    if module == GATE_UP:
        return [config.intermediate_size] * 2
    return [config.intermediate_size] if module == UP else None


class SummedLinear(nn.Module):
    """A linear layer of whose matrix each rank has some columns: the ranks' results are summed."""

    def __init__(self, linear: nn.Module, all_reduce: AllReduce) -> None:
        super().__init__()
        self.linear, self.all_reduce = linear, all_reduce

    def forward(self, x: Tensor) -> Tensor:
        return self.all_reduce(self.linear(x))


def sum_over_ranks(shard: Model, all_reduce: AllReduce) -> None:
    """Let all ranks' results be summed after the attention and after the MLP of each layer; in place."""
    for parent in list(shard.modules()):
        for name, child in list(parent.named_children()):
            if name in SUMMED:
                setattr(parent, name, SummedLinear(child, all_reduce))
