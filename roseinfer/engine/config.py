"""EngineConfig: what an engine must know to be sized. EngineSizes: every size that follows, with nothing allocated."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roseinfer.arguments import counted, refuse_wrong_arguments, require_count
from roseinfer.hardware import available_bytes
from roseinfer.models import ModelConfig, empty_model, model_config
from roseinfer.profiling.facts import Facts, HasFacts

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
QUANTIZATIONS = (None, "int8")
BLOCK_ID_BYTES = 4  # block tables are int32
MIB = 2**20


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
        shape = model_config(self.model)
        if self.max_model_len is not None and self.max_model_len > shape.max_model_len:
            raise ValueError(
                f"max_model_len={self.max_model_len} is more positions than {self.model} has, "
                f"allowed: at most {shape.max_model_len}"
            )
        model = empty_model(shape)
        num_weights = sum(p.numel() for p in model.parameters())  # which names a tied one once
        if not self.quantization:
            return EngineSizes(self, shape, num_weights)
        from .weights import int8_sizes

        return EngineSizes(self, shape, num_weights, *int8_sizes(model))


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


def block_bytes(shape: ModelConfig, block_size: int, value_bytes: int) -> int:
    """K and V of a block's tokens, in all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * block_size * value_bytes


@dataclass(frozen=True, slots=True)
class EngineSizes(HasFacts):
    """What an engine of `config` allocates before its first request: exact integers. Shown as a table.

    shape: of the model. num_weights: values, tied ones counted once; num_in_int8 of them are not in the dtype but in 8
    bits, int8_bytes with their scales. Left out is what comes and goes with a step: activations, and the padded batch
    of a stage that gathers; and what a GPU's runtime takes for itself.
    """

    config: EngineConfig
    shape: ModelConfig
    num_weights: int
    num_in_int8: int = 0
    int8_bytes: int = 0

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""
        return self.config.max_model_len or self.shape.max_model_len

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.config.block_size)

    @property
    def table_width(self) -> int:
        """Entries of a block table's row: no sequence holds more blocks than the pool has."""
        return min(self.max_blocks, self.config.num_blocks)

    @property
    def weight_bytes(self) -> int:
        return (self.num_weights - self.num_in_int8) * DTYPE_BYTES[self.config.dtype] + self.int8_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token, in all layers."""
        return block_bytes(self.shape, 1, DTYPE_BYTES[self.config.dtype])

    @property
    def block_bytes(self) -> int:
        """One block in all layers."""
        return block_bytes(self.shape, self.config.block_size, DTYPE_BYTES[self.config.dtype])

    @property
    def pool_bytes(self) -> int:
        return self.config.num_blocks * self.block_bytes

    @property
    def pool_tokens(self) -> int:
        return self.config.num_blocks * self.config.block_size

    @property
    def longest_seqs_in_pool(self) -> int:
        """Sequences of max_model_len tokens that the pool holds at once; max_num_seqs may allow fewer."""
        return self.config.num_blocks // self.max_blocks

    @property
    def block_table_bytes(self) -> int:
        """The buffer [num_layers, max_num_seqs, table_width] of int32 on the device."""
        return self.shape.num_layers * self.config.max_num_seqs * self.table_width * BLOCK_ID_BYTES

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes + self.block_table_bytes

    def facts(self) -> Facts:
        """The sizes, exact; and where the device is here, a live row on whether they fit its memory."""
        import pandas as pd

        rows = self._rows()
        exact_rows = [True] * len(rows)
        if fit := self.fit():
            left, verdict = fit
            rows.append(("fits", left, "bytes left", verdict))
            exact_rows.append(False)
        df = pd.DataFrame(rows, columns=["what", "size", "unit", "how"])
        df["MiB"] = df["size"].where(df["unit"].str.startswith("bytes")) / MIB
        return Facts(
            df[["what", "size", "unit", "MiB", "how"]],
            exact=["what", "size", "unit", "MiB", "how"],
            exact_rows=exact_rows,
            title=f"{self.config.model} in {self.config.dtype} on {self.config.device}",
            note="without activations, which come and go with a step",
            formats={"size": "{:,}", "MiB": "{:,.3f}"},
        )

    def fit(self) -> tuple[int, str] | None:
        """(bytes of the device that are free now less total_bytes, the same in words); None where this machine has no
        such device."""
        free = available_bytes(self.config.device)
        if free is None:
            return None
        left = free - self.total_bytes
        verdict, than = ("yes", "more") if left >= 0 else ("no", "fewer")
        here = f"{self.config.device} here has {free:,} bytes free"
        return left, f"{verdict}: {here}, {abs(left):,} {than} than the total"

    def _rows(self) -> list[tuple[str, int, str, str]]:
        c, s, item = self.config, self.shape, DTYPE_BYTES[self.config.dtype]
        layers, blocks, tokens = counted(s.num_layers, "layer"), counted(c.num_blocks, "block"), c.block_size
        token = f"2 (K, V) x {layers} x {counted(s.num_kv_heads, 'KV head')} x {s.head_dim} x {item}"
        width = counted(self.table_width, "block")
        tables = f"[{layers}, {counted(c.max_num_seqs, 'sequence')}, {width}] x {BLOCK_ID_BYTES}"
        longest = f"of {counted(self.max_model_len, 'token')}: {c.num_blocks:,} // {counted(self.max_blocks, 'block')}"
        weights = f"{self.num_weights - self.num_in_int8:,} x {item}"
        weights += f" + {self.int8_bytes:,} for matrices in 8 bits" if self.int8_bytes else ""
        return [
            ("weights", self.weight_bytes, "bytes", weights),
            ("K and V of a token", self.kv_bytes_per_token, "bytes", token),
            ("block", self.block_bytes, "bytes", counted(tokens, "token")),
            ("pool", self.pool_bytes, "bytes", blocks),
            ("tokens in the pool", self.pool_tokens, "tokens", f"{blocks} x {tokens:,}"),
            ("longest sequences", self.longest_seqs_in_pool, "sequences", longest),
            ("block tables", self.block_table_bytes, "bytes", tables),
            ("total", self.total_bytes, "bytes", "weights + pool + block tables"),
        ]
