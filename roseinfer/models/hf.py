"""Models to and from the Hugging Face format; what differs between families is in hf_gpt2.py and hf_llama.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from roseinfer.arguments import is_integer

from . import hf_gpt2, hf_llama
from .config import ModelConfig, require_size
from .gguf_file import GgufFile
from .hf_eos import read_eos
from .hf_gguf import HfTensors
from .model import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = {"gpt2": hf_gpt2, "llama": hf_llama, "mistral": hf_llama, "qwen2": hf_llama, "qwen3": hf_llama}
WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
QUANTISED = (
    "a quantised checkpoint is not supported, load the model that it was made from, with quantization='int8' or 'int4'"
)
# transformers gives their configs layer_types. In the others its KV cache takes windows from the keys themselves.
NAMES_ITS_LAYERS = ("qwen2", "qwen3")


def config_from_hf(hf: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """Return the ModelConfig of a parsed config.json, with the end tokens of generation_config.json where there is one.

    Raises ValueError for an unsupported model_type or setting, a quantised checkpoint, and a missing or impossible
    value.
    """
    family = _family(hf.get("model_type"))
    if (given := hf.get("quantization_config")) is not None:
        raise ValueError(f"config.json: quantization_config={given!r:.80}: {QUANTISED}")
    if missing := [key for key in family.REQUIRED if hf.get(key) is None]:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    for key in family.REQUIRED:
        require_size(f"config.json: {key}", hf[key])
    for key, allowed in family.FIXED_SETTINGS.items():
        if hf.get(key) not in (None, *allowed):
            raise ValueError(f"config.json: {key}={hf[key]!r} is not supported, only {', '.join(map(repr, allowed))}")
    for other, key in family.ALIASES.items():
        if hf.get(other, hf[key]) != hf[key]:
            raise ValueError(f"config.json: {other}={hf[other]!r} contradicts {key}={hf[key]!r}")
    _require_full_attention(hf, positions=family.REQUIRED[-1])
    return family.read_config(hf | {"eos_token_id": read_eos(hf, generation)})


def _require_full_attention(hf: dict[str, Any], positions: str) -> None:
    """Raise ValueError where a layer or the KV cache of transformers' model leaves out some of the tokens before.

    positions: the config's key for the number of positions.
    """
    layer_types = hf.get("layer_types")
    if layer_types is not None and not isinstance(layer_types, list):
        raise ValueError(f"config.json: layer_types={layer_types!r} must be a list")
    if others := [kind for kind in layer_types or [] if kind != "full_attention"]:
        raise ValueError(f"config.json: layer_types has {others[0]!r}, which is not supported, only 'full_attention'")
    if layer_types is not None or hf["model_type"] in NAMES_ITS_LAYERS:
        return
    windows = ["sliding_window", "attention_chunk_size"]
    if hf["model_type"] == "mistral":
        windows.remove("sliding_window")  # it bounds max_model_len: see hf_llama.py
    for key in windows:
        window = hf.get(key)
        if window is not None and not (is_integer(window) and window >= hf[positions]):
            raise ValueError(
                f"config.json: {key}={window!r} is not supported, only null or at least {positions}={hf[positions]}"
            )


def weights_from_hf(tensors: dict[str, Tensor], config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the checkpoint's tensors under our names and in our layout, one after another.

    Raises ValueError for a dtype that only a quantised checkpoint has.
    """
    family = _family(config.architecture)
    weights = {name: tensor for name, tensor in tensors.items() if not name.endswith(family.NOT_WEIGHTS)}
    for name, tensor in weights.items():
        if tensor.dtype not in WEIGHT_DTYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in WEIGHT_DTYPES)
            raise ValueError(f"weight {name} is {tensor.dtype}, allowed: {allowed}; {QUANTISED}")
    return family.read_weights(weights, config)


def weights_from_gguf(
    file: GgufFile, config: ModelConfig, read: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield a GGUF file's tensors under our names and in our layout, one after another.

    read: GgufFile.computed, or another function that returns a tensor by its name in the file.
    """
    return _family(config.architecture).read_weights(HfTensors(file, read), config)


def to_hf(model: Model) -> PreTrainedModel:
    """Return transformers' own model with the same weights (copied): the second oracle, and the ladder's baseline.

    Raises ValueError for what transformers' model of that type cannot hold: grouped heads in GPT-2, say.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM

    family = _family(model.config.architecture)
    try:
        config = family.write_config(model.config)
    except StrictDataclassError as e:
        raise ValueError(
            f"transformers' {model.config.architecture} refuses this shape: {' '.join(str(e).split())}"
        ) from e
    _check_same(model.config, config_from_hf(config.to_dict()))
    with torch.device("meta"):  # the weights come from `model`: a random initialisation would only cost time
        hf = AutoModelForCausalLM.from_config(config)
    hf.load_state_dict(family.write_weights(model), strict=False, assign=True)
    hf.tie_weights()
    if hasattr(hf.base_model, "rotary_emb"):  # no weight: it computes its frequencies as it is made
        with model.device:
            hf.base_model.rotary_emb = type(hf.base_model.rotary_emb)(config)
    left = [name for name, tensor in [*hf.named_parameters(), *hf.named_buffers()] if tensor.is_meta]
    assert not left, f"weights without a source: {left}"
    return hf.requires_grad_(False).eval()


def _family(model_type: object) -> ModuleType:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type={model_type!r} is not supported, only {', '.join(map(repr, FAMILIES))}")
    return FAMILIES[model_type]


def _check_same(ours: ModelConfig, theirs: ModelConfig) -> None:
    for field in fields(ModelConfig):
        mine, held = getattr(ours, field.name), getattr(theirs, field.name)
        if mine != held:
            raise ValueError(
                f"{field.name}={mine!r}: transformers' {ours.architecture} cannot hold that, it would be {held!r}"
            )
