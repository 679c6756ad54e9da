"""load_model: one spec string for the bundled model, random weights, a local folder or a hub id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.arguments import counted
from roseinfer.hardware import BFLOAT16_SINCE, device_name, devices_here, dotted, is_here
from roseinfer.paths import TINY

from .config import ModelConfig
from .gguf_file import GgufFile
from .gguf_folder import ON_THE_HUB, SMOLLM2, TOKENIZER, gguf_folder, gguf_path
from .hf import config_from_hf, weights_from_gguf, weights_from_hf
from .model import Model
from .shapes import RANDOM_SHAPES, check_fits, empty_model, random_model

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CONFIG_FILES = ["config.json", "generation_config.json"]
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "*.jinja"]
MODEL_FILES = [*CONFIG_FILES, *TOKENIZER_FILES, "*.safetensors", "*.safetensors.index.json"]
OFFLINE_HELP = "'tiny', 'random:gpt2' and local folders work without a network"


class ModelLoadError(ValueError):
    """A model that cannot be loaded. The message says what is wrong with which file or argument."""


def load_model(
    spec: str,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    draw_on: str | torch.device = "cpu",
) -> Model:
    """Load a model, in eval mode and without gradients.

    Args:
        spec: "tiny" (bundled), "random:gpt2" (seeded random weights; RANDOM_SHAPES names the others), a local folder in
            HF format, a GGUF file, or a hub id. "smollm2" is the file that its package brings, or the hub's.
        device: where the weights are.
        dtype: of the weights: torch.float32, torch.float16 or torch.bfloat16.
        draw_on: where random weights are drawn. On the CPU they are the same on every machine; a GPU draws others, and
            billions of them in seconds.

    Raises ModelLoadError (a ValueError) with one line that names the file or argument and what is allowed.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype={dtype} is not supported, allowed: {', '.join(map(str, DTYPES))}")
    device = _checked_device(device)
    _check_bfloat16(dtype, device)
    if spec.startswith("random:"):
        return _random_model(spec, device, dtype, draw_on)
    return _model_from_folder(_folder(spec, MODEL_FILES), gguf_path(spec), device, dtype)


def model_config(spec: str) -> ModelConfig:
    """Return the config of the model that load_model(spec) loads; no weights are read, made or downloaded.

    Raises ModelLoadError.
    """
    return shape_of(spec) if spec.startswith("random:") else read_config(_folder(spec, CONFIG_FILES))


def generation_config(spec: str) -> dict[str, Any]:
    """Return what generation_config.json of `spec` holds: {} without such a file. Raises ModelLoadError."""
    if spec.startswith("random:"):
        return {}
    path = _folder(spec, CONFIG_FILES) / "generation_config.json"
    return _read_json(path) if path.is_file() else {}


def checkpoint_dtype(spec: str) -> str:
    """Return the name of the dtype that the checkpoint of `spec` says it has.

    It is float32 if the checkpoint says none, or one that no model here can have. Raises ModelLoadError.
    """
    if spec.startswith("random:"):
        return "float32"
    config = _read_json(_folder(spec, CONFIG_FILES) / "config.json")
    name = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    return name if name in [str(dtype).removeprefix("torch.") for dtype in DTYPES] else "float32"


def tokenizer_folder(spec: str) -> Path:
    """Find the folder with the tokenizer of `spec`, and its chat template if it has one. Raises ModelLoadError."""
    if spec.startswith("random:"):
        raise ModelLoadError(f"{spec!r} has random weights and no tokenizer; 'tiny' has one")
    folder = _folder(spec, [*CONFIG_FILES, *TOKENIZER_FILES])
    return folder / TOKENIZER if gguf_path(spec) else folder


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError as e:
        raise ModelLoadError(f"device={device!r} is not a device: {str(e).splitlines()[0]}") from e
    if not is_here(device):
        raise ModelLoadError(f"device={str(device)!r}: not on this machine, which has: {', '.join(devices_here())}")
    return device


def _check_bfloat16(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ModelLoadError for bfloat16 on a GPU that lacks it: no kernel could be compiled for it."""
    if dtype != torch.bfloat16 or device.type != "cuda":
        return
    has = torch.cuda.get_device_capability(device)
    if has < BFLOAT16_SINCE:
        raise ModelLoadError(
            f"dtype={dtype} needs a GPU of compute capability {dotted(BFLOAT16_SINCE)} or higher, and "
            f"{device_name(device)} has {dotted(has)}: use float16 or float32"
        )


def shape_of(spec: str) -> ModelConfig:
    """Return the config of a "random:..." spec, without making its weights. Raises ModelLoadError."""
    shape = RANDOM_SHAPES.get(spec.removeprefix("random:"))
    if shape is None:
        allowed = ", ".join(f"random:{name}" for name in RANDOM_SHAPES)
        raise ModelLoadError(f"unknown shape {spec!r}, allowed: {allowed}")
    return shape


def _random_model(spec: str, device: torch.device, dtype: torch.dtype, draw_on: str | torch.device) -> Model:
    shape = shape_of(spec)
    try:
        return random_model(shape, device=device, dtype=dtype, draw_on=draw_on)
    except ValueError as e:
        raise ModelLoadError(f"{spec}: {e}") from e


def _folder(spec: str, files: list[str]) -> Path:
    """Return the local folder of a spec. For a hub id, download `files` (patterns) to it."""
    if spec == "tiny":
        return TINY
    if gguf := gguf_path(spec):
        return hf_folder_of(gguf)
    if spec == SMOLLM2:
        spec = ON_THE_HUB
    path = Path(spec).expanduser()
    if path.is_dir():
        _refuse_gguf_files(path)
        return path
    if path.is_file():
        raise ModelLoadError(f"{spec!r} is a file: give the folder that holds config.json and model.safetensors")
    if spec.startswith((".", "/", "~")):
        raise ModelLoadError(f"no such folder: {spec!r}")
    return _download(spec, files)


def _refuse_gguf_files(folder: Path) -> None:
    """Raise ModelLoadError for a folder that has GGUF files in place of a config.json."""
    names = sorted(path.name for path in folder.glob("*.gguf"))
    if names and not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder} has no config.json, but GGUF files: name one of {', '.join(names)}")


def hf_folder_of(path: Path) -> Path:
    """Return gguf_folder's. Raises ModelLoadError where there is no such file, or it is no model that can be loaded."""
    if not path.is_file():
        raise ModelLoadError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: a GGUF file is wanted")
    try:
        return gguf_folder(path)
    except (ValueError, OSError) as e:
        raise ModelLoadError(f"{path}: {e}") from e


def _download(spec: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(spec, allow_patterns=files, etag_timeout=5))
    except HFValidationError as e:
        raise ModelLoadError(f"{spec!r} is neither a local folder nor a hub id; {OFFLINE_HELP}") from e
    except HfHubHTTPError as e:
        reason = str(e).strip().splitlines()[0]
        raise ModelLoadError(f"the hub refused {spec!r} (neither is it a local folder): {reason}") from e
    except (LocalEntryNotFoundError, OSError) as e:
        raise ModelLoadError(
            f"{spec!r} is no local folder, is not in the local cache, and the hub cannot be reached; {OFFLINE_HELP}"
        ) from e


def _model_from_folder(folder: Path, gguf: Path | None, device: torch.device, dtype: torch.dtype) -> Model:
    """Load the model of a folder. gguf: the file that has its weights, None for safetensors in the folder."""
    config = read_config(folder)
    model = empty_model(config)
    copies: dict[str, Tensor] = {}
    try:
        check_fits(model, device, dtype)
        for name, weight in _weights(folder, gguf, config):
            if name in copies:
                raise ValueError(f"weight {name} is there twice, under names that mean the same")
            copies[name] = weight.to(device=device, dtype=dtype).contiguous()
        if config.tie_embeddings:
            _join_tied(copies, model)
    except ModelLoadError:
        raise
    except ValueError as e:
        raise ModelLoadError(f"{gguf or folder}: {e}") from e
    check_shapes(model, copies, gguf or folder)
    model.load_state_dict(copies, assign=True)
    return model.requires_grad_(False).eval()


def _weights(folder: Path, gguf: Path | None, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    if gguf is None:
        return weights_from_hf(_read_tensors(folder), config)
    file = GgufFile(gguf)
    return weights_from_gguf(file, config, file.computed)


def _join_tied(weights: dict[str, Tensor], model: Model) -> None:
    """Keep the one matrix that is output matrix and token embedding, which a file stores under either or both names.

    Raises ValueError for two that differ.
    """
    [tied] = [name for name, p in model.named_parameters() if p is model.token_embedding.weight]
    output = weights.pop("lm_head.weight", None)
    if output is not None and not torch.equal(output, weights.setdefault(tied, output)):
        raise ValueError(
            f"config.json ties the output matrix to {tied}, and the file's lm_head.weight is another: "
            "tie_word_embeddings=false uses it (not in GPT-2, which always ties)"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} does not exist: not a model folder in HF format") from None
    except OSError as e:
        raise ModelLoadError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ModelLoadError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold an object, got {type(data).__name__}")
    return data


def read_config(folder: Path) -> ModelConfig:
    hf, generation = _read_json(folder / "config.json"), folder / "generation_config.json"
    try:
        return config_from_hf(hf, _read_json(generation) if generation.is_file() else None)
    except ModelLoadError:
        raise
    except ValueError as e:
        raise ModelLoadError(f"{folder}: {e}") from e


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of model.safetensors, or else of the shards that an index names, as transformers does."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    tensors: dict[str, Tensor] = {}
    for path in _shards(index) if index.is_file() and not whole.is_file() else [whole]:
        try:
            found = load_file(path)
        except FileNotFoundError:
            raise ModelLoadError(f"{path} does not exist (only safetensors weights are read)") from None
        except OSError as e:
            reason = "it is a folder" if path.is_dir() else e.strerror or e
            raise ModelLoadError(f"{path} cannot be read: {reason}") from e
        except SafetensorError as e:
            raise ModelLoadError(f"{path} is truncated or not a safetensors file: {e}") from e
        if twice := sorted(found.keys() & tensors.keys()):
            raise ModelLoadError(f"{path}: weight {twice[0]} is in another shard, too")
        tensors |= found
    return tensors


def _shards(index: Path) -> list[Path]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelLoadError(f"{index}: weight_map must be an object of file names, got {weight_map!r:.60}")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise ModelLoadError(f"{index}: weight_map names {outside[0]!r}, which is no file of this folder")
    return [index.parent / name for name in names]


def check_shapes(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing:
        raise ModelLoadError(f"{folder}: {counted(len(missing), 'weight', 'is/are')} missing, first {missing[0]}")
    if unknown:
        raise ModelLoadError(
            f"{folder}: {counted(len(unknown), 'weight', 'belongs/belong')} to no part of the model, first {unknown[0]}"
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ModelLoadError(
                f"{folder}: weight {name} has shape {tuple(weights[name].shape)}, config.json says {shape}"
            )
