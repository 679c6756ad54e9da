"""A GGUF file's model with its matrices and token embeddings in the file's own blocks, for a CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from roseinfer.arguments import counted
from roseinfer.kernels.quantized_layout import STORED

from .checkpoint import MODEL_FILES, ModelLoadError, checkpoint_of
from .gguf_file import GgufFile, StoredTensor
from .gguf_path import gguf_path
from .gguf_wide import KINDS, in_wide_blocks
from .hf import weights_from_gguf
from .linear import MatrixInTiles, StoredEmbedding, StoredLinear, TiledLinear
from .load import check_shapes
from .model import Model
from .shapes import empty_model
from .weights import finish_layouts

logger = logging.getLogger(__name__)
TABLE, HALVES = "token_embd.weight", {"F16": torch.float16, "BF16": torch.bfloat16}
Read = Callable[[GgufFile, str], Tensor]  # a tensor, by its name in a file
JOINED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))  # of a layer: matrices that we compute as one


def stored_gguf(spec: str, dtype: str | None, quantization: str | None, device: str) -> Path | None:
    """Return the GGUF file of a spec whose matrices stay as they are stored: on a CPU, if nothing else is asked for."""
    as_stored = dtype is None and quantization is None and torch.device(device).type == "cpu"
    return gguf_path(spec) if as_stored else None


def load_as_stored(path: Path) -> Model:
    """Load a GGUF file's model for a CPU, its matrices in the file's own blocks where those are Q8_0, Q4_0 or Q4_1.

    Blocks of the other kinds in gguf_wide.KINDS keep their values in WIDE ones. Other matrices and all vectors become
    float32, one at a time, which is logged. Token embeddings stay in blocks, and in float16 and bfloat16, too; where
    they are the output matrix as well, both share the blocks. Raises ModelLoadError.
    """
    computed: list[StoredTensor] = []

    def in_float32(file: GgufFile, name: str) -> Tensor:
        computed.append(file.stored[name])
        return file.computed(name)

    def as_stored(file: GgufFile, name: str) -> Tensor:
        if file.stored[name].kind in HALVES and "output.weight" not in file.stored:  # the output matrix comes from it
            computed.append(file.stored[name])
        return torch.from_numpy(file.raw(name))

    model = _model_of(path, in_float32, as_stored)
    _log_computed(path, [tensor for tensor in computed if tensor.kind != "F32"])
    finish_layouts(model)
    return model


def empty_as_stored(path: Path) -> Model:
    """Return what load_as_stored would, on the meta device: it has all sizes, and no memory. Raises ModelLoadError."""

    def as_stored(file: GgufFile, name: str) -> Tensor:
        return torch.empty(file.stored[name].raw_shape, dtype=torch.uint8, device="meta")

    return _model_of(path, GgufFile.empty, as_stored)


def _model_of(path: Path, computed: Read, as_stored: Read) -> Model:
    """Make a file's model. computed: reads a tensor in float32. as_stored: reads the bytes of its rows."""
    checkpoint = checkpoint_of(str(path), MODEL_FILES)
    config, file = checkpoint.config, checkpoint.gguf
    assert file, "the path is a GGUF file's"
    model = empty_model(config)

    def as_is(name: str) -> Tensor:
        if name in kept:
            raw = as_stored(file, name)
            return in_wide_blocks(raw, file.stored[name].kind) if kept[name] else raw
        if name == TABLE and (dtype := HALVES.get(file.stored[name].kind)):
            return as_stored(file, name).view(dtype)
        return computed(file, name)

    try:
        check_shapes(model, dict(weights_from_gguf(file, config, file.empty)), path)
        kept = _kept_in_blocks(file)  # whose names are all known by now
        _fill(model, weights_from_gguf(file, config, as_is))
    except ModelLoadError:
        raise
    except (ValueError, OSError) as e:
        raise ModelLoadError(f"{path}: {e}") from e
    return model


def _kept_in_blocks(file: GgufFile) -> dict[str, bool]:
    """Return the names of the matrices that stay in blocks, and for each whether in WIDE ones.

    One compiled call computes a step whose layers have their matrices in one layout. So where a file has several kinds
    for them, each is made WIDE. Those that we compute as one matrix stay in blocks only together.
    """
    kinds = {name: tensor.kind for name, tensor in file.stored.items() if len(tensor.shape) == 2}
    of_layers = {kind for name, kind in kinds.items() if name.startswith("blk.")} & KINDS.keys()
    kept = {}
    for name, kind in kinds.items():
        part = name.split(".")[-2]
        together = next((group for group in JOINED if part in group), (part,))
        if (
            part != "position_embd"
            and {kinds.get(name.replace(part, other), kind) for other in together} <= KINDS.keys()
        ):
            kept[name] = kind not in STORED or (name.startswith("blk.") and len(of_layers) > 1)
    return kept


def _log_computed(path: Path, tensors: list[StoredTensor]) -> None:
    """Log which tensors of a file became float32, and the bytes that they take now."""
    if tensors:
        kinds, numbers = sorted({tensor.kind for tensor in tensors}), sum(prod(tensor.shape) for tensor in tensors)
        logger.warning(
            f"{path}: {counted(len(tensors), 'tensor')} of {', '.join(kinds)} became float32, "
            f"{4 * numbers:,} bytes instead of {sum(tensor.nbytes for tensor in tensors):,}"
        )


@torch.inference_mode()
def _fill(model: Model, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Give an empty model its weights, one after another, each matrix as a GGUF file has it; in place.

    weights: by name; those in blocks are uint8 [rows, bytes].
    """
    # 1. Matrices: each gets its layout before the next one is read.
    vectors: dict[str, Tensor] = {}
    for name, tensor in weights:
        owner, _, kind = name.rpartition(".")
        module = model.get_submodule(owner)
        if module is model.token_embedding:
            model.set_submodule(owner, _embedding(model, tensor))
        elif isinstance(module, nn.Linear) and kind == "weight":
            model.set_submodule(owner, _matrix(tensor, module.in_features))
        else:
            vectors[name] = tensor
    # 2. Their biases, which may have come before them.
    for name in [name for name in vectors if name.endswith(".bias")]:
        if isinstance(module := model.get_submodule(name.removesuffix(".bias")), MatrixInTiles):
            module.bias = vectors.pop(name)
    # 3. All others.
    model.load_state_dict(vectors, assign=True)
    model.requires_grad_(False).eval()


def _embedding(model: Model, table: Tensor) -> StoredEmbedding:
    """Return the layer of a table of token embeddings, and make it the output matrix where the model ties them."""
    width, is_in_blocks = model.config.hidden_size, table.dtype == torch.uint8
    if model.config.tie_embeddings:
        model.lm_head = matrix = _matrix(table, width)
    elif is_in_blocks:
        matrix = _matrix(table, width)
    return StoredEmbedding(matrix.weight if is_in_blocks else table, model.config.vocab_size, width)


def _matrix(raw: Tensor, in_features: int) -> MatrixInTiles:
    """Return the layer of a matrix as a GGUF file has it: in its blocks, or in float32 where it came computed."""
    if raw.dtype == torch.uint8:
        return StoredLinear(raw, in_features, None)
    return TiledLinear(raw.float(), None)
