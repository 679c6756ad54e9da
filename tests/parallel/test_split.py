"""Which part of each weight a rank has, without a process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from oracles import small_llama, small_model

from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.parallel.rank import finished_shard
from roseinfer.parallel.split import check_whole, shard_config, shard_of, shard_weights
from roseinfer.stage import PromptAttention

TOKENS = torch.tensor([5, 9, 2, 77, 30, 9])
MODELS = {
    "gpt2": small_model,
    "gpt2, 2 KV heads": lambda: small_model(num_kv_heads=2),
    "llama": lambda: small_llama("llama", o_bias=True, qkv_bias=True),
    "qwen2": lambda: small_llama("qwen2"),
    "qwen3": lambda: small_llama("qwen3"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_two_ranks_are_the_whole_once(name: str) -> None:
    model = MODELS[name]()
    parts = [dict(shard_weights(model, rank, 2)) for rank in range(2)]
    for parameter, weight in model.named_parameters():
        first, second = (part[parameter] for part in parts)
        if parameter.endswith("bias") and first.shape == weight.shape and not torch.equal(first, second):
            assert torch.equal(first, weight) and not second.any()
        elif first.shape == weight.shape:
            assert torch.equal(first, weight) and torch.equal(second, weight)
        else:
            both = torch.cat([first.flatten(), second.flatten()]).sort().values
            assert torch.equal(both, weight.flatten().sort().values)


class InTurn:
    """A group whose ranks are computed one after another: a sum adds what the ranks before it have recorded."""

    def __init__(self, records: list[list[torch.Tensor]]) -> None:
        self.records, self.own = records, []

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.own.append(x.clone())
        return x


@pytest.mark.parametrize("name", MODELS)
def test_a_sum_follows_the_attention_and_the_mlp_of_each_layer_and_the_first_sum_is_right(name: str) -> None:
    model = MODELS[name]()
    sums = [sums_of_rank(model, rank, 2) for rank in range(2)]
    assert [len(one) for one in sums] == [2 * model.config.num_layers] * 2
    torch.testing.assert_close(sums[0][0] + sums[1][0], first_attention(model), atol=1e-5, rtol=1e-5)


def sums_of_rank(model: Model, rank: int, size: int) -> list[torch.Tensor]:
    """What a rank gives to each sum, computed on its own: only the first one is what it is with the others."""
    group = InTurn([])
    shard = finished_shard(shard_config(model.config, size), dict(shard_weights(model, rank, size)), False, group)
    with torch.inference_mode():
        shard(TOKENS, torch.arange(len(TOKENS)), PromptAttention())
    return group.own


def first_attention(model: Model) -> torch.Tensor:
    found: list[torch.Tensor] = []
    blocks = model.h if hasattr(model, "h") else model.layers
    attention = blocks[0].attn if hasattr(model, "h") else blocks[0].self_attn
    hook = attention.register_forward_hook(lambda module, args, out: found.append(out))
    with torch.inference_mode():
        model(TOKENS, torch.arange(len(TOKENS)), PromptAttention())
    hook.remove()
    return found[0]


def test_a_fused_gate_and_up_is_cut_in_both() -> None:
    model = small_llama("llama")
    weight = model.layers[0].mlp.gate_up_proj.weight
    gate, up = weight.chunk(2)
    x = torch.randn(3, model.config.hidden_size)
    halves = []
    for rank in range(2):
        own_gate, own_up = shard_of("layers.0.mlp.gate_up_proj.weight", weight, model.config, rank, 2).chunk(2)
        halves.append(F.silu(x @ own_gate.T) * (x @ own_up.T))
    torch.testing.assert_close(torch.cat(halves, 1), F.silu(x @ gate.T) * (x @ up.T))


@pytest.mark.parametrize(
    ("changes", "size", "numbers"),
    [
        ({"num_kv_heads": 1}, 2, "tensor_parallel_size=2 must divide the model's num_kv_heads=1"),
        ({"intermediate_size": 65}, 2, "tensor_parallel_size=2 must divide the model's intermediate_size=65"),
    ],
)
def test_what_does_not_divide_is_named_with_both_numbers(changes: dict, size: int, numbers: str) -> None:
    with pytest.raises(ValueError, match=numbers):
        shard_config(replace(small_model().config, **changes), size)


def test_a_prepared_model_and_an_unknown_class_are_refused() -> None:
    with pytest.raises(ValueError, match="prepared before"):
        check_whole(prepared_copy(small_model()))
    own = type("OwnModel", (type(small_model()),), {})
    model = small_model()
    model.__class__ = own
    with pytest.raises(ValueError, match="GPT2 or a Llama to be split, got OwnModel"):
        check_whole(model)
