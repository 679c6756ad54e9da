"""GPT-2 to and from the Hugging Face format: config.json's keys and the checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .config import ModelConfig
from .hf_eos import write_eos
from .model import Model

if TYPE_CHECKING:
    from transformers import GPT2Config

# Sizes that every config.json has.
REQUIRED = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
# All names that transformers has for GELU with tanh: they differ only in rounding.
GELU_NAMES = ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast")
# Settings that change the mathematics and that GPT2 here does not implement: key -> the allowed values.
FIXED_SETTINGS: dict[str, tuple[Any, ...]] = {
    "activation_function": GELU_NAMES,
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "is_causal": (True,),
}
# Other names of the same sizes: transformers reads both, and the last one wins.
ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}

# HF keeps these four as Conv1D, [in, out]; nn.Linear wants [out, in].
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# Causal masks that old checkpoints carry as buffers.
NOT_WEIGHTS = (".attn.bias", ".attn.masked_bias")


def read_config(hf: dict[str, Any]) -> ModelConfig:
    if hf["n_embd"] % hf["n_head"]:
        raise ValueError(f"config.json: n_head={hf['n_head']} must divide n_embd={hf['n_embd']}")
    return ModelConfig(
        architecture="gpt2",
        vocab_size=hf["vocab_size"],
        hidden_size=hf["n_embd"],
        num_layers=hf["n_layer"],
        num_heads=hf["n_head"],
        num_kv_heads=hf["n_head"],
        head_dim=hf["n_embd"] // hf["n_head"],
        intermediate_size=4 * hf["n_embd"] if hf.get("n_inner") is None else hf["n_inner"],
        max_model_len=hf["n_positions"],
        norm_eps=hf.get("layer_norm_epsilon", 1e-5),
        eos_token_id=hf["eos_token_id"],
        tie_embeddings=hf.get("tie_word_embeddings", True),
    )


def write_config(c: ModelConfig) -> GPT2Config:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=c.vocab_size,
        n_embd=c.hidden_size,
        n_layer=c.num_layers,
        n_head=c.num_heads,
        n_positions=c.max_model_len,
        n_inner=c.intermediate_size,
        layer_norm_epsilon=c.norm_eps,
        bos_token_id=next(iter(c.eos_token_ids), None),
        eos_token_id=write_eos(c),
        tie_word_embeddings=c.tie_embeddings,
    )


def read_weights(tensors: Mapping[str, Tensor], config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors as views, under our names and in our layout, without a copy."""
    for name, tensor in tensors.items():
        is_turned = name.endswith(TRANSPOSED) and tensor.dim() == 2
        yield name.removeprefix("transformer."), tensor.t() if is_turned else tensor


def write_weights(model: Model) -> dict[str, Tensor]:
    return {
        name if name.startswith("lm_head") else f"transformer.{name}": (
            w.t().contiguous() if name.endswith(TRANSPOSED) else w.clone()
        )
        for name, w in model.state_dict().items()
    }
