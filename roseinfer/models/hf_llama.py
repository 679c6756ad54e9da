"""Llama, Mistral, Qwen2 and Qwen3 to and from the Hugging Face format: config.json and the checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .config import ModelConfig, require_size
from .hf_eos import write_eos
from .model import Model
from .rope import rope_from_hf

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Sizes that every config.json has.
REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
# Settings that change the mathematics and that Llama here does not implement: key -> the allowed values.
FIXED_SETTINGS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),  # two names of one function
    "mlp_bias": (False,),
    "pretraining_tp": (1,),
    "use_sliding_window": (False,),
    "is_causal": (True,),
    "partial_rotary_factor": (1.0,),
}
REQUIRED_BY_FAMILY: dict[str, list[str]] = {
    "llama": [],
    "mistral": ["num_key_value_heads"],
    "qwen2": ["num_key_value_heads"],
    "qwen3": ["num_key_value_heads", "head_dim"],
}
MISTRAL_WINDOW = 4096  # transformers' value where config.json does not mention it
ALIASES: dict[str, str] = {}
# Computed from the config, and stored by old checkpoints.
NOT_WEIGHTS = ("rotary_emb.inv_freq",)

# One matrix here, several in the checkpoint, in this order of rows.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def read_config(hf: dict[str, Any]) -> ModelConfig:
    family, num_heads = hf["model_type"], hf["num_attention_heads"]
    # transformers' defaults for these are numbers of one particular model, and its files never leave them out.
    if missing := [key for key in REQUIRED_BY_FAMILY[family] if hf.get(key) is None]:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    if hf.get("head_dim") is None and hf["hidden_size"] % num_heads:
        raise ValueError(f"config.json: num_attention_heads={num_heads} must divide hidden_size={hf['hidden_size']}")
    num_kv_heads, head_dim = hf.get("num_key_value_heads"), hf.get("head_dim")
    bias = hf.get("attention_bias", False)
    return ModelConfig(
        architecture=family,
        vocab_size=hf["vocab_size"],
        hidden_size=hf["hidden_size"],
        num_layers=hf["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        head_dim=hf["hidden_size"] // num_heads if head_dim is None else head_dim,
        intermediate_size=hf["intermediate_size"],
        max_model_len=_max_model_len(hf),
        norm_eps=hf.get("rms_norm_eps", 1e-6),
        eos_token_id=hf["eos_token_id"],
        tie_embeddings=hf.get("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or (family != "mistral" and bias),
        o_bias=family not in ("qwen2", "mistral") and bias,
        qk_norm=family == "qwen3",
        rope=rope_from_hf(hf),
    )


def _max_model_len(hf: dict[str, Any]) -> int:
    """Return how many positions are computed with full attention: Mistral's window may hold fewer than its config has.

    Raises ValueError for a window that is not a positive integer.
    """
    positions: int = hf["max_position_embeddings"]
    window = hf.get("sliding_window", MISTRAL_WINDOW) if hf["model_type"] == "mistral" else None
    if window is None:
        return positions
    require_size("config.json: sliding_window", window)
    return min(positions, window)


def write_config(c: ModelConfig) -> PretrainedConfig:
    from transformers import AutoConfig

    assert c.rope is not None, f"{c.architecture} turns its positions with RoPE"
    own: dict[str, Any] = {} if c.architecture == "qwen2" else {"attention_bias": c.qkv_bias}
    if c.architecture == "mistral":  # max_model_len is within the window already
        own = {"sliding_window": None}
    return AutoConfig.for_model(
        c.architecture,
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        intermediate_size=c.intermediate_size,
        max_position_embeddings=c.max_model_len,
        rms_norm_eps=c.norm_eps,
        eos_token_id=write_eos(c),
        tie_word_embeddings=c.tie_embeddings,
        rope_parameters=asdict(c.rope),
        **own,
    )


def read_weights(tensors: Mapping[str, Tensor], config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield our weights one after another, so that the joined copies do not all exist at once.

    Raises ValueError for parts that lack a partner or cannot be joined, and for a matrix that is joined already, in an
    unknown order of rows.
    """
    for name in tensors:  # without its values: a GGUF file's are read when they are asked for
        if joined := [whole for whole in FUSED if f".{whole}." in name]:
            raise ValueError(f"weight {name} is not supported, only {', '.join(FUSED[joined[0]])} on their own")
        whole, parts = _fused_from(name)
        if parts is None:
            yield name.removeprefix("model."), tensors[name]
        elif missing := [part for part in parts if part not in tensors]:
            raise ValueError(f"weight {missing[0]} is missing, without which {name} is of no use")
        elif name == parts[0]:
            pieces = [tensors[part] for part in parts]
            if len({piece.shape[1:] for piece in pieces}) > 1:
                shapes = ", ".join(str(tuple(piece.shape)) for piece in pieces)
                raise ValueError(f"weights {', '.join(parts)} must be equally wide, got shapes {shapes}")
            yield whole.removeprefix("model."), _stacked(pieces)


def _stacked(pieces: list[Tensor]) -> Tensor:
    """Return matrices one below another. On the meta device torch.cat would import PyTorch's compiler: a second."""
    rows = [piece.shape[0] for piece in pieces]
    dtype = reduce(torch.promote_types, (piece.dtype for piece in pieces))
    whole = pieces[0].new_empty(sum(rows), *pieces[0].shape[1:], dtype=dtype)
    for part, piece in zip(whole.split(rows), pieces, strict=True):
        part.copy_(piece)
    return whole


def _fused_from(name: str) -> tuple[str, list[str] | None]:
    """Return the fused name of a part, and the names of all its parts in order; name and None for other names."""
    for whole, parts in FUSED.items():
        for part in parts:
            if f".{part}." in name:
                return name.replace(part, whole), [name.replace(part, p) for p in parts]
    return name, None


def write_weights(model: Model) -> dict[str, Tensor]:
    c = model.config
    rows = {
        "qkv_proj": [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim],
        "gate_up_proj": [c.intermediate_size, c.intermediate_size],
    }
    tensors = {}
    for name, weight in model.state_dict().items():
        hf_name = name if name.startswith("lm_head") else f"model.{name}"
        module = name.split(".")[-2]
        if module not in FUSED:
            tensors[hf_name] = weight.clone()
            continue
        for part, piece in zip(FUSED[module], weight.split(rows[module]), strict=True):
            tensors[hf_name.replace(module, part)] = piece.clone()
    return tensors
