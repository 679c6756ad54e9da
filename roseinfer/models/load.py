"""load_model and load_tokenizer: one spec string for the bundled model, random weights, a local folder or a hub id."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from .config import ModelConfig
from .gpt2 import GPT2
from .hf import config_from_hf, weights_from_hf

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny-gpt2"
RANDOM_SEED = 0
RANDOM_SHAPES = {
    # GPT-2 small. The first post measured an untrained checkpoint of this shape: times do not depend on the values.
    "gpt2": ModelConfig(
        architecture="gpt2", vocab_size=50257, hidden_size=768, num_layers=12, num_heads=12, num_kv_heads=12,
        head_dim=64, intermediate_size=3072, max_model_len=1024, eos_token_id=50256,
    ),
}  # fmt: skip
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OFFLINE_HELP = "'tiny', 'random:gpt2' and local folders work without a network"


class ModelLoadError(ValueError):
    """The model could not be loaded; the message says what is wrong with which file or argument."""


def load_model(spec: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> GPT2:
    """The model named by `spec`, in eval mode, without gradients.

    spec: "tiny" (bundled), "random:gpt2" (seeded random weights), a local folder in HF format, or a hub id.
    Raises ModelLoadError (a ValueError) with one line that names the file or argument and what is allowed.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype={dtype} is not supported, allowed: {', '.join(map(str, DTYPES))}")
    device = _checked_device(device)
    if spec.startswith("random:"):
        model = random_model(shape_of(spec)).to(device=device, dtype=dtype)
    else:
        model = _model_from_folder(_folder(spec), device, dtype)
    return model.requires_grad_(False).eval()


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that belongs to `spec`: `.encode(text).ids` and `.decode(ids)`. Raises ModelLoadError."""
    if spec.startswith("random:"):
        raise ModelLoadError(f"{spec!r} has random weights and no tokenizer: give token ids, or use 'tiny'")
    path = _folder(spec) / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(f"{path} does not exist")
    return Tokenizer.from_file(str(path))


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError as e:
        raise ModelLoadError(f"device={device!r} is not a device: {str(e).splitlines()[0]}") from e
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device={str(device)!r}: no CUDA device here, use device='cpu'")
    return device


def shape_of(spec: str) -> ModelConfig:
    """The config of a "random:..." spec, without making its weights. Raises ModelLoadError."""
    shape = RANDOM_SHAPES.get(spec.removeprefix("random:"))
    if shape is None:
        allowed = ", ".join(f"random:{name}" for name in RANDOM_SHAPES)
        raise ModelLoadError(f"unknown shape {spec!r}, allowed: {allowed}")
    return shape


def random_model(config: ModelConfig, seed: int = RANDOM_SEED) -> GPT2:
    """Seeded weights as GPT-2 initialises them (normal, std 0.02; norms 1, biases 0), the same on every machine."""
    with torch.device("meta"):
        model = GPT2(config)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.zero_()
            elif "ln_" in name:
                p.fill_(1.0)
            else:
                p.normal_(std=0.02, generator=generator)
    return model.requires_grad_(False).eval()


def _folder(spec: str) -> Path:
    if spec == "tiny":
        if not TINY.is_dir():
            raise ModelLoadError(f"the bundled model is not at {TINY}: run from a clone of the repository")
        return TINY
    path = Path(spec).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise ModelLoadError(f"{spec!r} is a file: give the folder that holds config.json and model.safetensors")
    if spec.startswith((".", "/", "~")):
        raise ModelLoadError(f"no such folder: {spec!r}")
    return _download(spec)


def _download(spec: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json"]
        return Path(snapshot_download(spec, allow_patterns=patterns, etag_timeout=5))
    except HFValidationError as e:
        raise ModelLoadError(f"{spec!r} is neither a local folder nor a hub id; {OFFLINE_HELP}") from e
    except HfHubHTTPError as e:
        reason = str(e).strip().splitlines()[0]
        raise ModelLoadError(f"the hub refused {spec!r} (neither is it a local folder): {reason}") from e
    except (LocalEntryNotFoundError, OSError) as e:
        raise ModelLoadError(
            f"{spec!r} is no local folder, is not in the local cache, and the hub cannot be reached; {OFFLINE_HELP}"
        ) from e


def _model_from_folder(folder: Path, device: torch.device, dtype: torch.dtype) -> GPT2:
    config = _read_config(folder)
    with torch.device("meta"):
        model = GPT2(config)
    weights = weights_from_hf(_read_tensors(folder))
    _check_shapes(model, weights, folder)
    copies = {name: w.to(device=device, dtype=dtype).contiguous() for name, w in weights.items()}
    model.load_state_dict(copies, assign=True)
    return model


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} does not exist: not a model folder in HF format") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ModelLoadError(f"{path} is not valid JSON: {e}") from e


def _read_config(folder: Path) -> ModelConfig:
    hf = _read_json(folder / "config.json")
    if hf.get("model_type") != "gpt2":
        raise ModelLoadError(f"{folder}/config.json: model_type={hf.get('model_type')!r} is not supported, only 'gpt2'")
    try:
        return config_from_hf(hf)
    except ValueError as e:
        raise ModelLoadError(f"{folder}: {e}") from e


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of model.safetensors, or of the shards that its index names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    names = sorted(set(_read_json(index)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= load_file(folder / name)
        except FileNotFoundError:
            raise ModelLoadError(f"{folder / name} does not exist (only safetensors weights are read)") from None
        except SafetensorError as e:
            raise ModelLoadError(f"{folder / name} is truncated or not a safetensors file: {e}") from e
    return tensors


def _check_shapes(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing:
        raise ModelLoadError(f"{folder}: {len(missing)} weights are missing, first {missing[0]}")
    if unknown:
        raise ModelLoadError(f"{folder}: {len(unknown)} weights belong to no part of the model, first {unknown[0]}")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ModelLoadError(
                f"{folder}: weight {name} has shape {tuple(weights[name].shape)}, config.json says {shape}"
            )
