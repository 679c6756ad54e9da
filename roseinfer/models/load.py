"""load_model: one spec string for the bundled model, random weights, a local folder or a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.arguments import counted
from roseinfer.hardware import BFLOAT16_SINCE, device_name, devices_here, dotted, is_here

from .checkpoint import CONFIG_FILES, MODEL_FILES, TOKENIZER_FILES, Checkpoint, ModelLoadError, checkpoint_of
from .config import ModelConfig
from .model import Model
from .shapes import RANDOM_SHAPES, check_fits, empty_model, random_model

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    return _model_from(checkpoint_of(spec, MODEL_FILES), device, dtype)


def model_config(spec: str) -> ModelConfig:
    """Return the config of the model that load_model(spec) loads; no weights are read, made or downloaded.

    Raises ModelLoadError.
    """
    return shape_of(spec) if spec.startswith("random:") else checkpoint_of(spec, CONFIG_FILES).config


def generation_config(spec: str) -> dict[str, Any]:
    """Return what generation_config.json of `spec` holds: {} without such a file. Raises ModelLoadError."""
    if spec.startswith("random:"):
        return {}
    return checkpoint_of(spec, CONFIG_FILES).generation or {}


def checkpoint_dtype(spec: str) -> str:
    """Return the name of the dtype that the checkpoint of `spec` says it has.

    It is float32 if the checkpoint says none, or one that no model here can have. Raises ModelLoadError.
    """
    if spec.startswith("random:"):
        return "float32"
    config = checkpoint_of(spec, CONFIG_FILES).hf_config
    name = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    return name if name in [str(dtype).removeprefix("torch.") for dtype in DTYPES] else "float32"


def tokenizer_checkpoint(spec: str) -> Checkpoint:
    """Find the checkpoint that has the tokenizer of `spec`, and its chat template if any. Raises ModelLoadError."""
    if spec.startswith("random:"):
        raise ModelLoadError(f"{spec!r} has random weights and no tokenizer; 'tiny' has one")
    return checkpoint_of(spec, [*CONFIG_FILES, *TOKENIZER_FILES])


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


def _model_from(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Model:
    config, path = checkpoint.config, checkpoint.path
    model = empty_model(config)
    copies: dict[str, Tensor] = {}
    try:
        check_fits(model, device, dtype)
        for name, weight in checkpoint.weights():
            if name in copies:
                raise ValueError(f"weight {name} is there twice, under names that mean the same")
            copies[name] = weight.to(device=device, dtype=dtype).contiguous()
        if config.tie_embeddings:
            _join_tied(copies, model)
    except ModelLoadError:
        raise
    except (ValueError, OSError) as e:
        raise ModelLoadError(f"{path}: {e}") from e
    check_shapes(model, copies, path)
    model.load_state_dict(copies, assign=True)
    return model.requires_grad_(False).eval()


def _join_tied(weights: dict[str, Tensor], model: Model) -> None:
    """Keep the one matrix that is output matrix and token embedding, which a file stores under either or both names.

    Raises ValueError for two that differ.
    """
    [tied] = [name for name, p in model.named_parameters() if p is model.token_embedding.weight]
    output = weights.pop("lm_head.weight", None)
    if output is not None and not torch.equal(output, weights.setdefault(tied, output)):
        raise ValueError(
            f"config.json ties the output matrix to {tied}, and the file's lm_head.weight is another: "
            "tie_word_embeddings=false uses it"
        )


def check_shapes(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Raise ModelLoadError unless the weights are the model's, by name and shape. path: its folder or GGUF file."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing:
        raise ModelLoadError(f"{path}: {counted(len(missing), 'weight', 'is/are')} missing, first {missing[0]}")
    if unknown:
        raise ModelLoadError(
            f"{path}: {counted(len(unknown), 'weight', 'belongs/belong')} to no part of the model, first {unknown[0]}"
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            says = "its metadata says" if path.is_file() else "config.json says"
            raise ModelLoadError(f"{path}: weight {name} has shape {tuple(weights[name].shape)}, {says} {shape}")
