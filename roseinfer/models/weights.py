"""prepare_weights: every matrix of a model in the layout that this machine multiplies fastest, and its bytes.

On a GPU matrices stay as they are: its libraries read rows at full speed. On a CPU a decode step is bound by reading
weights, so their order and their size decide how fast it is.

torchao's int8 layers were tried and not taken: uncompiled, its tensor subclass costs half a millisecond a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn

from roseinfer.models import Model
from roseinfer.models.gpt2 import MLP

from .linear import (
    Int4Linear,
    Int8Linear,
    MatrixInTiles,
    QuantizedLinear,
    StoredEmbedding,
    TiledLinear,
    check_groups,
)

QUANTIZATIONS = ("int8", "int4")


@torch.inference_mode()
def prepare_weights(model: Model, quantization: str | None = None) -> None:
    """Replace each matrix of the model, the output matrix too, by one in the layout for this machine; in place.

    quantization: None keeps the model's dtype; "int8" and "int4" take 8 or 4 bits per weight, for the matrices
    (embeddings and norms stay).

    Matrices are replaced one at a time, and the original is given back: at no time does memory hold more than one in
    two layouts. A token embedding that is also the output matrix stays as the table for lookups. Load first, prepare
    last: a prepared model has no state_dict of its weights, and does not move to another device.

    Raises ValueError for an unknown quantization, for one on a GPU, for "int4" with a matrix whose width has no whole
    groups, and for a model that was prepared before.
    """
    check_quantization(quantization, str(model.device))
    if any(isinstance(module, MatrixInTiles) for module in model.modules()):
        raise ValueError("model was prepared before: load it again")
    if model.device.type != "cpu":
        return
    if layout := layout_of(model.dtype, quantization):
        rearrange(model, layout)
        finish_layouts(model)


def rearrange(model: Model, layout: type[TiledLinear | QuantizedLinear]) -> None:
    """Replace each matrix of a model by one in that layout; in place. On the meta device they have sizes alone.

    Raises ValueError for 4 bits and a matrix whose width has no whole groups, before the first one is replaced.
    """
    if layout is Int4Linear:
        for width in {module.in_features for module in model.modules() if isinstance(module, nn.Linear)}:
            check_groups(width)
        check_groups(model.config.hidden_size)  # of the output matrix
    for parent in [module for module in model.modules() if not isinstance(module, nn.Linear)]:
        for name in [name for name, child in parent.named_children() if isinstance(child, nn.Linear)]:
            linear = getattr(parent, name)
            setattr(parent, name, layout(linear.weight, linear.bias))
            del linear  # before the next one is made
    if model.lm_head is None:
        model.lm_head = layout(model.token_embedding.weight, None)


def finish_layouts(model: Model) -> None:
    """Let products of a GPT-2 take GELU along, and compile what a request would have to wait for."""
    for module in model.modules():
        if isinstance(module, MLP) and isinstance(module.c_fc, MatrixInTiles):
            module.c_fc.gelu, module.act = True, nn.Identity()
    model.logits(torch.zeros(1, model.config.hidden_size, dtype=model.dtype))


def layout_of(dtype: torch.dtype, quantization: str | None = None) -> type[TiledLinear | QuantizedLinear] | None:
    """Return the layout of a model's matrices on a CPU; None: as they are loaded."""
    if quantization:
        return Int8Linear if quantization == "int8" else Int4Linear
    return TiledLinear if dtype in (torch.float32, torch.bfloat16) else None


def prepared_copy(model: Model, quantization: str | None = None) -> Model:
    """Prepare the weights of a copy: what stays the same in both is shared, not copied."""
    copy = deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    prepare_weights(copy, quantization)
    return copy


def weight_bytes(model: Model) -> int:
    """Return the bytes of weights that every step reads: each matrix in its layout, biases, norms.

    The rows that are looked up in embedding tables, one or two a token, are left out.
    """
    read = [module for module in model.modules() if not isinstance(module, (nn.Embedding, StoredEmbedding))]
    return _bytes_of([*read, model.token_embedding] if model.lm_head is None else read)


def held_bytes(model: Model) -> int:
    """Return the bytes of all weights in memory, embedding tables too."""
    return _bytes_of(model.modules())


def _bytes_of(modules: Iterable[nn.Module]) -> int:
    """Return the bytes of the modules' own weights. Those that two of them share count once."""
    return sum({id(weight): weight.nbytes for module in modules for weight in _own(module)}.values())


def _own(module: nn.Module) -> Iterable[Tensor]:
    if isinstance(module, MatrixInTiles):
        return module.weight, module.bias
    return (module.weight,) if isinstance(module, StoredEmbedding) else module.parameters(recurse=False)


def check_quantization(quantization: object, device: str) -> None:
    """Raise ValueError for a quantization that is unknown, or that this device does not support."""
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
    if torch.device(device).type != "cpu":
        raise ValueError(f"quantization={quantization!r} runs on a CPU, and the model is on {device!r}")
