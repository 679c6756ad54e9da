"""GPT-2 to and from the Hugging Face format: config.json's keys and the checkpoint's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .config import ModelConfig
from .gpt2 import GPT2

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

# HF keeps these four as Conv1D, [in, out]; nn.Linear wants [out, in].
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# Causal masks that old checkpoints carry as buffers, and the output matrix, which is tied to wte.
NOT_WEIGHTS = (".attn.bias", ".attn.masked_bias", "lm_head.weight")

# Settings that change the mathematics and that GPT2 here does not implement: key -> the one allowed value.
FIXED_SETTINGS = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def config_from_hf(hf: dict[str, Any]) -> ModelConfig:
    """ModelConfig from a parsed GPT-2 config.json. Raises ValueError for a missing size or an unsupported setting."""
    missing = [key for key in ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions") if key not in hf]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    for key, allowed in FIXED_SETTINGS.items():
        if hf.get(key, allowed) != allowed:
            raise ValueError(f"config.json: {key}={hf[key]!r} is not supported, only {allowed!r}")
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
        intermediate_size=hf.get("n_inner") or 4 * hf["n_embd"],
        max_model_len=hf["n_positions"],
        norm_eps=hf.get("layer_norm_epsilon", 1e-5),
        eos_token_id=hf.get("eos_token_id"),
    )


def weights_from_hf(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under GPT2's names, transposed where needed (views, nothing copied)."""
    weights = {}
    for name, tensor in tensors.items():
        if not name.endswith(NOT_WEIGHTS):
            weights[name.removeprefix("transformer.")] = tensor.t() if name.endswith(TRANSPOSED) else tensor
    return weights


def to_hf(model: GPT2) -> GPT2LMHeadModel:
    """The same weights (copied) as transformers' GPT2LMHeadModel: the second oracle, and the ladder's baseline.

    Raises ValueError for grouped KV heads, which HF's GPT-2 does not have.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    c = model.config
    if c.num_kv_heads != c.num_heads:
        raise ValueError(f"num_kv_heads={c.num_kv_heads}: HF's GPT-2 has no grouped heads, only {c.num_heads}")
    config = GPT2Config(
        vocab_size=c.vocab_size, n_embd=c.hidden_size, n_layer=c.num_layers, n_head=c.num_heads,
        n_positions=c.max_model_len, n_inner=c.intermediate_size, layer_norm_epsilon=c.norm_eps,
        bos_token_id=c.eos_token_id, eos_token_id=c.eos_token_id,
    )  # fmt: skip
    tensors = {
        f"transformer.{name}": (w.t().contiguous() if name.endswith(TRANSPOSED) else w.clone())
        for name, w in model.state_dict().items()
    }
    with torch.device("meta"):  # the weights come from `model`: a random initialisation would only cost time
        hf = GPT2LMHeadModel(config)
    hf.load_state_dict(tensors, strict=False, assign=True)
    hf.tie_weights()
    left = [name for name, p in hf.named_parameters() if p.is_meta]
    assert not left, f"weights without a source: {left}"
    return hf.requires_grad_(False).eval()
