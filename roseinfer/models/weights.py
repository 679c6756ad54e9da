"""prepare_weights: every matrix of a model in the layout that this machine multiplies fastest, and the bytes of it.

On a GPU matrices stay as they are: its libraries read rows at full speed. On a CPU a decode step is bound by reading
weights, so their order and their size decide how fast it is.

torchao's int8 layers were tried and not taken: uncompiled, its tensor subclass costs half a millisecond a layer.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from roseinfer.kernels.onednn import packs
from roseinfer.models import Model
from roseinfer.models.gpt2 import MLP

from .linear import Int8Linear, PackedLinear

LAYOUTS = (PackedLinear, Int8Linear)
QUANTIZATIONS = (None, "int8")


@torch.inference_mode()
def prepare_weights(model: Model, quantization: str | None = None) -> None:
    """Replace each matrix of the model, the output matrix too, by one in the layout for this machine; in place.

    quantization: None keeps the model's dtype; "int8" takes 8 bits per weight, for the matrices (embeddings and norms
    stay). One matrix at a time, and the original is given back: at no time does memory hold more than one in two
    layouts. A token embedding that is also the output matrix stays as the table for lookups. Load first, prepare last:
    a prepared model has no state_dict of its weights, and does not move to another device.

    Raises ValueError for an unknown quantization, for "int8" on a GPU, and for a model that was prepared before.
    """
    check_quantization(quantization, str(model.device))
    if any(isinstance(module, LAYOUTS) for module in model.modules()):
        raise ValueError("model was prepared before: load it again")
    if model.device.type != "cpu":
        return
    layout = Int8Linear if quantization == "int8" else PackedLinear if packs(model.dtype) else None
    if layout is None:
        return
    for parent in [module for module in model.modules() if not isinstance(module, nn.Linear)]:
        for name in [name for name, child in parent.named_children() if isinstance(child, nn.Linear)]:
            linear = getattr(parent, name)
            setattr(parent, name, layout(linear.weight, linear.bias))
            del linear  # before the next one is made
    if model.lm_head is None:
        model.lm_head = layout(model.token_embedding.weight, None)
    for module in model.modules():
        if isinstance(module, MLP) and isinstance(module.c_fc, LAYOUTS):
            module.c_fc.gelu, module.act = True, nn.Identity()
    model.lm_head(torch.zeros(1, model.config.hidden_size, dtype=model.dtype))  # compiles now what a request would


def prepared_copy(model: Model, quantization: str | None = None) -> Model:
    """Prepare the weights of a copy: what stays the same in both is shared, not copied."""
    copy = deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    prepare_weights(copy, quantization)
    return copy


def int8_sizes(model: Model) -> tuple[int, int]:
    """(values that leave the model's dtype, bytes that they have in 8 bits) when prepare_weights quantises the model,
    of which only the shapes are looked at. The second has a tied output matrix, too, whose table stays as it is."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    shapes = [tuple(linear.weight.shape) for linear in linears]
    if model.lm_head is None:
        shapes.append(tuple(model.token_embedding.weight.shape))
    num_values = sum(p.numel() for linear in linears for p in linear.parameters())
    return num_values, sum(Int8Linear.bytes_of(*shape) for shape in shapes)


def packed_output_bytes(model: Model, dtype: torch.dtype) -> int:
    """Bytes that prepare_weights without int8 adds on this CPU, in that dtype: of a tied output matrix the packed
    copy, beside its table. Only the model's shapes are looked at."""
    return model.token_embedding.weight.numel() * dtype.itemsize if model.lm_head is None and packs(dtype) else 0


def weight_bytes(model: Model) -> int:
    """Bytes of weights that a step reads, whatever its batch: each matrix in its layout, biases, norms.

    Left out are the rows that are looked up in embedding tables, one or two a token.
    """
    read = sum(_own_bytes(module) for module in model.modules() if not isinstance(module, nn.Embedding))
    return read + (model.token_embedding.weight.nbytes if model.lm_head is None else 0)


def held_bytes(model: Model) -> int:
    """Bytes of all weights in memory, embedding tables too."""
    return sum(_own_bytes(module) for module in model.modules())


def _own_bytes(module: nn.Module) -> int:
    if isinstance(module, LAYOUTS):
        return module.nbytes
    return sum(p.nbytes for p in module.parameters(recurse=False))


def check_quantization(quantization: object, device: str) -> None:
    """Raises ValueError for what no device does, or not this one."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {', '.join(map(repr, QUANTIZATIONS))}, got {quantization!r}")
    if quantization and torch.device(device).type != "cpu":
        raise ValueError(f"quantization={quantization!r} runs on a CPU, and the model is on {device!r}")
