"""GGUF in Hugging Face's terms: the metadata as a config.json, and the tensors under the names of its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roseinfer.arguments import is_integer, require_positive

from .config import require_size
from .gguf_file import GgufFile

# GGUF's name of an architecture -> Hugging Face's. Mistral's files say llama.
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2"}
SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
GPT2_SIZES = {
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "feed_forward_length": "n_inner",
    "context_length": "n_positions",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
FRACTIONS = ("rms_norm_eps", "layer_norm_epsilon", "rope_theta")  # all others are sizes
# Other names that messages have for what a file says: ModelConfig's and rope_parameters'.
OTHER_NAMES = {
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "max_model_len": "context_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
# Inverse frequencies of Llama 3.1 and later, stretched: what each is divided by.
STRETCHED = "rope_freqs.weight"
END_TOKENS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
IN_A_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the config.json of a file's model.

    Raises ValueError for an architecture that is not supported, and for numbers that the package gguf cannot compute.
    """
    if (kind := file.metadata.get("general.type", "model")) != "model":
        raise ValueError(f"general.type={kind!r}: it is no model by itself")
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(f"general.architecture={name!r} is not supported, only {', '.join(ARCHITECTURES)}")
    _require_values(file)
    sizes = GPT2_SIZES if name == "gpt2" else SIZES
    config = {"model_type": ARCHITECTURES[name], "vocab_size": _vocab_size(file)}
    for key, theirs in sizes.items():
        if (value := file.metadata.get(f"{name}.{key}")) is not None:
            if theirs in FRACTIONS:
                require_positive(f"{name}.{key}", value)
            else:
                require_size(f"its metadata: {name}.{key}", value)
            config[theirs] = value
    config["tie_word_embeddings"] = "output.weight" not in file.stored
    if name != "gpt2":
        _require_whole_heads(file, name, config)
        config["rope_scaling"] = _rope_scaling(file, name, config)
        if name == "llama":
            config["attention_bias"] = "blk.0.attn_q.bias" in file.stored
    return config


def in_gguf_words(file: GgufFile, message: str) -> str:
    """Return a message about a config with the names that a GGUF file has for its values."""
    name = file.metadata["general.architecture"]
    keys = {theirs: key for key, theirs in (GPT2_SIZES if name == "gpt2" else SIZES).items()} | OTHER_NAMES
    spelled = re.compile(rf"(?<![\w.])({'|'.join(keys)})(?!\w)")
    return spelled.sub(lambda found: f"{name}.{keys[found[1]]}", message.replace("config.json", "its metadata"))


def end_tokens(file: GgufFile) -> list[int]:
    """Return the ids that end a text: the end of the text, of a turn and of a message. Raises ValueError."""
    found = {key: file.metadata[key] for key in END_TOKENS if key in file.metadata}
    rows = _vocab_size(file)
    for key, token in found.items():
        if not is_integer(token) or not 0 <= token < rows:
            raise ValueError(f"{key}={token!r:.60} is no token: there are {rows:,}")
    return sorted(set(found.values()))


class HfTensors(Mapping[str, Tensor]):
    """The tensors of a GGUF file as a checkpoint has them, each read when it is asked for.

    Llama's files have the rows of q and k in another order, in which the partners of a rotation are neighbours.

    read: a method of the file, which returns a tensor by its name, or one with other numbers in each row.
    """

    def __init__(self, file: GgufFile, read: Callable[[str], Tensor]) -> None:
        self.read, self.config = read, config_of(file)
        self.names = {_hf_name(name, self.config["model_type"]): name for name in file.stored if name != STRETCHED}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.read(self.names[name])
        if self.config["model_type"] == "gpt2":
            return tensor.t() if tensor.dim() == 2 and ".h." in name else tensor
        if self.config["model_type"] == "llama" and (part := re.search(r"\.([qk])_proj\.", name)):
            key = "num_attention_heads" if part[1] == "q" else "num_key_value_heads"
            heads = self.config.get(key, self.config["num_attention_heads"])
            if len(tensor) % (2 * heads):
                raise ValueError(f"tensor {self.names[name]} has {len(tensor)} rows, its metadata says {heads} heads")
            return halves_apart(tensor, heads)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.names  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def halves_apart(rows: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of q or k, or a bias: from partners of a rotation side by side to partners D / 2 apart."""
    return rows.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _hf_name(name: str, model_type: str) -> str:
    names, layers = (GPT2_NAMES, "transformer.h") if model_type == "gpt2" else (NAMES, "model.layers")
    layer = IN_A_LAYER.fullmatch(name)
    part, _, ending = (layer[2] if layer else name).rpartition(".")
    if part not in names:
        raise ValueError(f"tensor {name} belongs to no part of a {model_type}")
    return f"{layers}.{layer[1]}.{names[part]}.{ending}" if layer else f"{names[part]}.{ending}"


def _vocab_size(file: GgufFile) -> int:
    """Return the rows of the token embedding. Raises ValueError where the file's tokens are not as many."""
    if "token_embd.weight" not in file.stored:
        raise ValueError("tensor token_embd.weight is missing: it is no language model")
    rows = file.stored["token_embd.weight"].shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list):
        raise ValueError(f"tokenizer.ggml.tokens must be a list of texts, got {tokens!r:.60}")
    if len(tokens) > rows:
        raise ValueError(f"its vocabulary has {len(tokens):,} tokens, and token_embd.weight only {rows:,} rows")
    return rows


def _require_values(file: GgufFile) -> None:
    """Raise ValueError for a tensor in a kind of numbers that the package gguf knows and does not compute."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    for kind, name in {tensor.kind: tensor.name for tensor in file.stored.values()}.items():
        block = np.zeros((1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]), np.uint8)
        try:
            dequantize(block, GGMLQuantizationType[kind])
        except NotImplementedError as e:
            raise ValueError(
                f"tensor {name} has numbers of type {kind}, which the package gguf does not compute"
            ) from e


def _require_whole_heads(file: GgufFile, name: str, config: dict[str, Any]) -> None:
    """Raise ValueError where positions turn a part of each head alone."""
    turned, width = file.metadata.get(f"{name}.rope.dimension_count"), _width_of_head(config)
    if turned not in (None, width):
        raise ValueError(f"{name}.rope.dimension_count={turned}: only whole heads of {width} are turned")


def _width_of_head(config: dict[str, Any]) -> int:
    width: int = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    return width


def _rope_scaling(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return rope_scaling as config.json has it, None where positions are not stretched."""
    kind = file.metadata.get(f"{name}.rope.scaling.type", "none")
    settings = {
        "factor": file.metadata.get(f"{name}.rope.scaling.factor"),
        "original_max_position_embeddings": file.metadata.get(f"{name}.rope.scaling.original_context_length"),
    }
    if STRETCHED in file.stored:
        return _as_llama3(file.computed(STRETCHED), config)
    if kind == "none":
        return None
    return {"rope_type": kind} | {key: value for key, value in settings.items() if value is not None}


def _as_llama3(divisors: Tensor, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of Llama 3.1 that give these divisors [D / 2]. Raises ValueError where they do not."""
    from .rope import Llama3Rope, Rope

    if divisors.dim() != 1:
        raise ValueError(f"tensor {STRETCHED} must be a vector, it has shape {tuple(divisors.shape)}")
    settings: dict[str, Any] = {
        "factor": float(max(divisors, default=1.0)),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = float(config.get("rope_theta", 10_000.0))
    plain = Rope(rope_theta=theta).inverse_frequencies(2 * len(divisors), divisors.device)
    stretched = Llama3Rope(rope_theta=theta, **settings).inverse_frequencies(2 * len(divisors), divisors.device)
    if 2 * len(divisors) != _width_of_head(config) or not torch.allclose(plain / stretched, divisors, rtol=1e-3):
        raise ValueError(f"{STRETCHED} is not Llama 3.1's formula, which alone is supported")
    return {"rope_type": "llama3"} | settings
