"""Writes models as GGUF files in the way of llama.cpp's converter, for tests of how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from roseinfer.models import Model
from roseinfer.models.hf import FAMILIES
from roseinfer.models.hf_gguf import GPT2_NAMES, NAMES
from roseinfer.models.rope import Llama3Rope

WORDS = [*(chr(code) for code in range(33, 127)), "Ġ", "Ġa", "ab", "<end>"]


def write_gguf(model: Model, path: Path, kind: str = "F32", v_kind: str | None = None, **metadata: Any) -> Path:
    """Write a model of any family.

    kind: of its matrices and tables; v_kind: of v_proj, if it has another. metadata: more values, or others, by their
    names in GGUF.
    """
    c = model.config
    name = {"mistral": "llama"}.get(c.architecture, c.architecture)
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(c.max_model_len)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_heads)
    if name == "gpt2":
        writer.add_layer_norm_eps(c.norm_eps)
    else:
        assert c.rope is not None
        writer.add_head_count_kv(c.num_kv_heads)
        writer.add_key_length(c.head_dim)
        writer.add_layer_norm_rms_eps(c.norm_eps)
        writer.add_rope_freq_base(c.rope.rope_theta)
        if isinstance(c.rope, Llama3Rope):
            plain = type(c.rope).__mro__[1].inverse_frequencies(c.rope, c.head_dim, model.device)
            stretched = c.rope.inverse_frequencies(c.head_dim, model.device)
            writer.add_tensor("rope_freqs.weight", (plain / stretched).numpy())
    for key, value in metadata.items():
        add_value(writer, key.replace("__", "."), value)
    add_vocabulary(writer, c.vocab_size)
    for hf_name, weight in FAMILIES[c.architecture].write_weights(model).items():
        values = stored(hf_name, weight.float().numpy(), model)
        matrix_kind = v_kind if v_kind and ".v_proj." in hf_name else kind
        own = matrix_kind if values.ndim == 2 else "F32"
        data = values if own == "F32" else quantized(values, own)
        writer.add_tensor(gguf_name(hf_name), np.ascontiguousarray(data), raw_dtype=Kind[own])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Where a block has numbers in float16; of any bits some would not be finite.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def quantized(values: np.ndarray, kind: str) -> np.ndarray:
    """Return rows of blocks; of a kind to which the package gguf rounds nothing, drawn ones."""
    if not kind.endswith("_K"):
        return gguf.quants.quantize(values, Kind[kind])
    return drawn_blocks(kind, values.size // gguf.GGML_QUANT_SIZES[Kind[kind]][0]).reshape(len(values), -1)


def drawn_blocks(kind: str, num_blocks: int) -> np.ndarray:
    """Return blocks of any bits, with scales that make values like a model's: uint8 [num_blocks, bytes]."""
    rng = np.random.default_rng(num_blocks)
    blocks = rng.integers(0, 256, (num_blocks, gguf.GGML_QUANT_SIZES[Kind[kind]][1]), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        halves = (3e-5 * rng.standard_normal(num_blocks)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks


def stored(hf_name: str, weight: np.ndarray, model: Model) -> np.ndarray:
    """Return a weight as the converter stores it: GPT-2's matrices turned, partners of Llama's q and k side by side."""
    c = model.config
    if c.architecture == "gpt2":
        return weight.T if weight.ndim == 2 and ".h." in hf_name else weight
    heads = c.num_heads if ".q_proj." in hf_name else c.num_kv_heads
    if c.architecture in ("llama", "mistral") and (".q_proj." in hf_name or ".k_proj." in hf_name):
        return (
            weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
        )
    return weight


def gguf_name(hf_name: str) -> str:
    """Translate the name of a tensor."""
    names = {theirs: ours for ours, theirs in (GPT2_NAMES if hf_name.startswith("transformer.") else NAMES).items()}
    part, ending = hf_name.rsplit(".", 1)
    if part in names:
        return f"{names[part]}.{ending}"
    _, _, layer, part = part.split(".", 3)
    return f"blk.{layer}.{names[part]}.{ending}"


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Add a vocabulary of single letters, two merges and an end token, filled up with words that no text has."""
    words = [*WORDS, *(f"<unused {n}>" for n in range(size - len(WORDS)))][:size]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if word[0] == "<" and len(word) > 1 else gguf.TokenType.NORMAL for word in words]
    )
    writer.add_token_merges(["Ġ a", "a b"])
    writer.add_eos_token_id(words.index("<end>"))


def add_value(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    writer.kv_data[0].pop(name, None)
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[type(value)](name, value)
