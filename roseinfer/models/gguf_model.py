"""A GGUF file's model with its matrices in the file's own blocks, for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from roseinfer.kernels.quantized_layout import STORED

from .checkpoint import MODEL_FILES, ModelLoadError, checkpoint_of
from .config import ModelConfig
from .gguf_file import GgufFile
from .gguf_folder import gguf_path
from .hf import weights_from_gguf
from .linear import StoredLinear, TiledLinear
from .load import check_shapes
from .model import Model
from .shapes import empty_model
from .weights import finish_layouts

JOINED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))  # of a layer: matrices that we compute as one


def stored_gguf(spec: str, dtype: str | None, quantization: str | None, device: str) -> Path | None:
    """Return the GGUF file of a spec whose matrices stay as they are stored: on a CPU, if nothing else is asked for."""
    as_stored = dtype is None and quantization is None and torch.device(device).type == "cpu"
    return gguf_path(spec) if as_stored else None


def load_as_stored(path: Path) -> Model:
    """Load a GGUF file's model for a CPU, its matrices in the file's own blocks where those are Q8_0, Q4_0 or Q4_1.

    Other matrices become float32, and so do vectors and the table of token embeddings. Raises ModelLoadError.
    """
    model = _model_of(path, GgufFile.computed, lambda raw: torch.from_numpy(raw.copy()))
    finish_layouts(model)
    return model


def empty_as_stored(path: Path) -> Model:
    """Return what load_as_stored would, on the meta device: it has all sizes, and no memory. Raises ModelLoadError."""
    return _model_of(path, GgufFile.empty, lambda raw: torch.empty(raw.shape, dtype=torch.uint8, device="meta"))


def _model_of(
    path: Path, computed: Callable[[GgufFile, str], Tensor], as_stored: Callable[[np.ndarray], Tensor]
) -> Model:
    """Make a file's model. computed: reads a tensor in float32. as_stored: makes a tensor of a matrix in blocks."""
    config = checkpoint_of(str(path), MODEL_FILES).config
    model, file = empty_model(config), GgufFile(path)

    def as_is(name: str) -> Tensor:
        return as_stored(file.raw(name)) if _is_in_blocks(file, name) else computed(file, name)

    try:
        check_shapes(model, _without_copy(dict(weights_from_gguf(file, config, file.empty)), config), path)
        tensors = _without_copy(dict(weights_from_gguf(file, config, as_is)), config)
        _take(model, tensors, computed(file, "token_embd.weight"))
    except ModelLoadError:
        raise
    except ValueError as e:
        raise ModelLoadError(f"{path}: {e}") from e
    return model


def _is_in_blocks(file: GgufFile, name: str) -> bool:
    """Whether a tensor is a matrix that can stay as stored: those that become one matrix need blocks of one kind."""
    part = name.split(".")[-2]
    together = next((group for group in JOINED if part in group), (part,))
    kinds = {file.stored[other].kind for p in together if (other := name.replace(part, p)) in file.stored}
    return len(file.stored[name].shape) == 2 and len(kinds) == 1 and kinds <= set(STORED)


def _without_copy(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Leave out GPT-2's output matrix, which some files have beside the token embedding that it is."""
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight" or not config.tie_embeddings}


def _matrix(raw: Tensor, in_features: int, bias: Tensor | None) -> nn.Module:
    """Return the layer of a matrix as a GGUF file has it: in its blocks, or in float32 where it came computed."""
    return StoredLinear(raw, in_features, bias) if raw.dtype == torch.uint8 else TiledLinear(raw, bias)


@torch.inference_mode()
def _take(model: Model, tensors: dict[str, Tensor], table: Tensor) -> None:
    """Give an empty model its weights with each matrix as a GGUF file has it; in place.

    tensors: by name, matrices in blocks as uint8 [M, bytes]; they are used up. table: the token embeddings, in float32.
    """
    [embedded] = [name for name, p in model.named_parameters() if p is model.token_embedding.weight]
    for name, linear in [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]:
        raw, bias = tensors.pop(f"{name}.weight"), tensors.pop(f"{name}.bias", None)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, _matrix(raw, linear.in_features, bias))
    if model.lm_head is None:
        model.lm_head = _matrix(tensors[embedded], model.config.hidden_size, None)
    model.load_state_dict(tensors | {embedded: table}, assign=True)
    model.requires_grad_(False).eval()
