"""EngineConfig: what an engine must know to be sized, and the checks that it shares with LLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from roseinfer.arguments import refuse_wrong_arguments, require_count
from roseinfer.models import model_config

if TYPE_CHECKING:
    from .sizes import EngineSizes

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
QUANTIZATIONS = (None, "int8")


@refuse_wrong_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an engine, given by name. Construction reads no file, needs no network and no GPU.

    model: a spec as load_model takes it. num_blocks: blocks of the KV pool, each block_size tokens in every layer.
    max_num_seqs: sequences held at a time. max_model_len: tokens of the longest sequence, None for as many as the model
    has positions. quantization: "int8" for matrices in 8 bits, on a CPU. device: where the engine will run; it need not
    exist here.

    Raises ValueError for a wrong value, and for an argument that is unknown (with the nearest name) or missing.
    """

    model: str
    num_blocks: int
    block_size: int = 64
    max_num_seqs: int = 64
    max_model_len: int | None = None
    dtype: str = "float32"
    quantization: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be a spec such as 'tiny' or 'random:gpt2', got {self.model!r}")
        for name in ("num_blocks", "block_size", "max_num_seqs"):
            require_count(name, getattr(self, name), at_least=1)
        if self.max_model_len is not None:
            require_count("max_model_len", self.max_model_len, at_least=1)
        check_dtype(self.dtype)
        check_device(self.device)
        check_quantization(self.quantization, self.device)
        check_block_size(self.block_size, torch.device(self.device).type)

    def sizes(self) -> EngineSizes:
        """All sizes, from the model's config alone: its weights are counted on the meta device, not read or made.

        Raises ValueError for a model that is not found, or a max_model_len above the model's.
        """
        from .sizes import EngineSizes

        shape = model_config(self.model)
        if self.max_model_len is not None and self.max_model_len > shape.max_model_len:
            raise ValueError(
                f"max_model_len={self.max_model_len} is more positions than {self.model} has, "
                f"allowed: at most {shape.max_model_len}"
            )
        return EngineSizes.of(self, shape)


def check_dtype(dtype: object) -> None:
    """Raises ValueError unless it names a dtype that weights and KV cache can have."""
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        how = ": 8-bit weights are quantization='int8'" if dtype == "int8" else ""
        raise ValueError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}{how}")


def check_device(device: object) -> None:
    """Raises ValueError unless torch knows a device of that name; whether this machine has one is not asked."""
    if not isinstance(device, str):
        raise ValueError(f"device must be a string such as 'cpu' or 'cuda:0', got {device!r}")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not a device: {str(error).splitlines()[0]}") from error


def check_quantization(quantization: object, device: str) -> None:
    """Raises ValueError for what no device does, or not this one."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {', '.join(map(repr, QUANTIZATIONS))}, got {quantization!r}")
    if quantization and torch.device(device).type != "cpu":
        raise ValueError(f"quantization={quantization!r} runs on a CPU, and the model is on {device!r}")


def check_block_size(block_size: int, device_type: str) -> None:
    """Raises ValueError for one that the kernels of that device cannot take."""
    if device_type == "cuda" and block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two on a GPU, got {block_size}")
