"""PlannedEngine: an engine that does not exist yet. EngineSizes: all that it will keep in memory, nothing allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from roseinfer.arguments import counted, refuse_wrong_arguments
from roseinfer.engine.batch import batch_shapes, padded_bytes
from roseinfer.engine.config import (
    DTYPE_BYTES,
    EngineConfig,
    check_block_size,
    check_device,
    check_dtype,
)
from roseinfer.engine.sampler import sampler_shapes
from roseinfer.engine.whole_step import address_bytes
from roseinfer.hardware import available_bytes
from roseinfer.models import ModelConfig, empty_model, model_config
from roseinfer.models.gguf_model import empty_as_stored, stored_gguf
from roseinfer.models.rope import Rotation
from roseinfer.models.weights import check_quantization, held_bytes, layout_of, rearrange
from roseinfer.profiling.facts import Facts, HasFacts

BLOCK_ID_BYTES = 4  # block tables are int32
MIB = 2**20


def block_bytes(shape: ModelConfig, block_size: int, value_bytes: int) -> int:
    """Return the bytes of K and V of a block's tokens, in all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * block_size * value_bytes


@refuse_wrong_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine(EngineConfig):
    """An engine and the model that it will have. Construction reads no file, needs no network and no GPU.

    model: a spec as load_model takes it. dtype: None for float32, and for a GGUF file's matrices as they are stored,
    where LLM keeps them so. quantization: "int8" or "int4" for matrices in 8 or 4 bits, on a CPU. device: where the
    engine will run; it need not exist here. Raises ValueError as EngineConfig does.
    """

    model: str
    dtype: str | None = None
    quantization: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be a spec such as 'tiny' or 'random:gpt2', got {self.model!r}")
        EngineConfig.__post_init__(self)
        check_dtype(self.float_dtype)
        check_device(self.device)
        check_quantization(self.quantization, self.device)
        if self.speculative and self.speculative.model is not None:
            if not isinstance(self.speculative.model, str):
                raise ValueError(
                    "speculative['model'] must be a spec such as 'tiny' for an engine that is not there yet"
                )
            check_quantization(self.speculative.quantization, self.device)
        check_block_size(self.block_size, torch.device(self.device).type)

    @property
    def float_dtype(self) -> str:
        """The dtype of the KV pool, and of all weights that have no layout of their own."""
        return "float32" if self.dtype is None else self.dtype

    @property
    def stored(self) -> Path | None:
        """The GGUF file whose matrices the engine keeps as they are stored, None for any other model."""
        return stored_gguf(self.model, self.dtype, self.quantization, self.device)

    def sizes(self) -> EngineSizes:
        """Return all sizes, from the model's config alone: weights are counted on the meta device, not read or made.

        Raises ValueError for a model that is not found, a max_model_len above the model's, or 4 bits where a matrix has
        no whole groups.
        """
        shape = model_config(self.model)
        self.longest(shape, self.model)
        return EngineSizes.of(self, shape)


@dataclass(frozen=True, slots=True)
class EngineSizes(HasFacts):
    """What an engine of `config` keeps as long as it exists: exact integers, shown as a table.

    Its weights are counted as LLM prepares them. shape: the model's. num_weights: values, tied ones counted once;
    num_in_layout of them are rearranged, on a CPU, to matrices of layout_bytes: with padding and scales, and with a
    tied output matrix, whose table stays. address_bytes: of the addresses at which a step that is one compiled function
    finds the weights; 0 where it is not. draft: the sizes of the model that drafts, which has a pool of its own.

    Not counted: the activations, which come and go with a step; what a GPU's runtime and its graphs take for
    themselves; and Python's own objects.
    """

    config: PlannedEngine
    shape: ModelConfig
    num_weights: int
    num_in_layout: int = 0
    layout_bytes: int = 0
    address_bytes: int = 0
    draft: EngineSizes | None = None

    @classmethod
    def of(cls, config: PlannedEngine, shape: ModelConfig) -> EngineSizes:
        """Return the sizes of an engine; weights are counted on the meta device."""
        model = empty_model(shape).to(getattr(torch, config.float_dtype))
        num_weights = sum(p.numel() for p in model.parameters())  # which names a tied one once
        if path := config.stored:
            model = empty_as_stored(path)
        elif torch.device(config.device).type == "cpu" and (layout := layout_of(model.dtype, config.quantization)):
            rearrange(model, layout)
        num_in_layout = num_weights - sum(p.numel() for p in model.parameters())
        layout_bytes = held_bytes(model) - sum(p.nbytes for p in model.parameters())
        addresses = 0 if config.enforce_eager else address_bytes(model)
        draft = cls._of_draft(config, shape)
        return cls(config, shape, num_weights, num_in_layout, layout_bytes, addresses, draft)

    @classmethod
    def _of_draft(cls, config: PlannedEngine, shape: ModelConfig) -> EngineSizes | None:
        wanted = config.speculative
        if wanted is None or wanted.model is None:
            return None
        assert isinstance(wanted.model, str), "PlannedEngine has checked that"
        own = replace(
            config, model=wanted.model, dtype=config.float_dtype, quantization=wanted.quantization, speculative=None
        )
        draft = model_config(wanted.model)
        wanted.check_model(draft, shape, config.longest(shape))
        return cls.of(own, draft)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""
        return self.config.longest(self.shape)

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.config.block_size)

    @property
    def table_width(self) -> int:
        """Entries of a block table's row: no sequence holds more blocks than the pool has."""
        return min(self.max_blocks, self.config.num_blocks)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights as they are loaded, and as a stage or transformers has them."""
        return self.num_weights * self._item

    @property
    def weight_bytes(self) -> int:
        return (self.num_weights - self.num_in_layout) * self._item + self.layout_bytes

    @property
    def rotation_bytes(self) -> int:
        """Bytes of the table of cosines and sines, for models with rotary positions."""
        s = self.shape
        return Rotation(s.rope, s.head_dim, s.max_model_len).num_values * self._item if s.rope else 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token, in all layers."""
        return block_bytes(self.shape, 1, self._item)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return block_bytes(self.shape, self.config.block_size, self._item)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool with the dummy block, which belongs to no sequence."""
        return (self.config.num_blocks + 1) * self.block_bytes

    @property
    def pool_tokens(self) -> int:
        return self.config.num_blocks * self.config.block_size

    @property
    def longest_seqs_in_pool(self) -> int:
        """Sequences of max_model_len tokens that the pool holds at once; max_num_seqs may allow fewer."""
        return self.config.num_blocks // self.max_blocks

    @property
    def input_bytes(self) -> int:
        """Bytes of what the host tells a step, on the device.

        On a GPU the host has a copy of it, or two with async_scheduling, which a CPU holds as well. Tokens that are
        read on the host lie there, too: a CPU holds them for each step in flight.
        """
        num_seqs, num_rows = self.config.max_num_seqs, self.config.step_rows
        batch = batch_shapes(num_seqs, self.config.step_tokens, self.table_width, num_rows)
        told = sum(padded_bytes(batch)) + sum(padded_bytes(sampler_shapes(num_rows)))
        in_flight = 2 if self.config.async_scheduling else 1
        copies = 2 if in_flight == 2 and self._on_cpu else 0
        return (1 + copies) * told + 8 * num_rows * (1 + (in_flight if self._on_cpu else 0))

    @property
    def attended_bytes(self) -> int:
        """Bytes of the attention's result, for all tokens of a step."""
        return self.config.step_tokens * self.shape.num_heads * self.shape.head_dim * self._item

    @property
    def block_table_bytes(self) -> int:
        """Bytes of the table [max_num_seqs, table_width] of int32, one for all layers, on the host."""
        return self.config.max_num_seqs * self.table_width * BLOCK_ID_BYTES

    @property
    def draft_bytes(self) -> int:
        """Bytes of the draft model on the device: its weights, pool and what its steps need; 0 where no model drafts.

        It has no block table of its own.
        """
        if self.draft is None:
            return 0
        return self.draft.total_bytes - (self.draft.block_table_bytes if self._on_cpu else 0)

    @property
    def total_bytes(self) -> int:
        """Bytes of all that the engine keeps on the device."""
        on_device = self.weight_bytes + self.rotation_bytes + self.pool_bytes + self.input_bytes + self.attended_bytes
        on_device += self.draft_bytes
        return on_device + (self.block_table_bytes + self.address_bytes if self._on_cpu else 0)

    @property
    def title(self) -> str:
        kept = "as stored" if self.config.stored else f"in {self.config.float_dtype}"
        return f"{self.config.model} {kept} on {self.config.device}"

    def facts(self) -> Facts:
        """Return the sizes, exact; and where the device is here, a live row on whether they fit its memory."""
        import pandas as pd

        rows = self.rows()
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
            title=self.title,
            note="without activations, which come and go with a step",
            formats={"size": "{:,}", "MiB": "{:,.3f}"},
        )

    def fit(self) -> tuple[int, str] | None:
        """Return (free bytes of the device less total_bytes, that in words); None where the device is not here."""
        free = available_bytes(self.config.device)
        if free is None:
            return None
        left = free - self.total_bytes
        verdict, than = ("yes", "more") if left >= 0 else ("no", "fewer")
        here = f"{self.config.device} here has {free:,} bytes free"
        return left, f"{verdict}: {here}, {abs(left):,} {than} than the total"

    @property
    def _item(self) -> int:
        return DTYPE_BYTES[self.config.float_dtype]

    @property
    def _on_cpu(self) -> bool:
        return torch.device(self.config.device).type == "cpu"

    def rows(self) -> list[tuple[str, int, str, str]]:
        """Return a row (what, size, unit, how it is computed) for each of the exact sizes."""
        c, s, item = self.config, self.shape, self._item
        blocks, seqs = counted(c.num_blocks, "block"), counted(c.max_num_seqs, "sequence")
        weights = f"{self.num_weights - self.num_in_layout:,} x {item}"
        how = f" in {c.quantization[3:]} bits" if c.quantization else " in the order in which this CPU reads them"
        how = ", in the file's blocks where it has them" if c.stored else how
        weights += f" + {self.layout_bytes:,} for matrices{how}" if self.layout_bytes else ""
        layers, kv_heads = counted(s.num_layers, "layer"), counted(s.num_kv_heads, "KV head")
        token = f"2 (K, V) x {layers} x {kv_heads} x {s.head_dim} x {item}"
        longest = f"of {counted(self.max_model_len, 'token')}: {c.num_blocks:,} // {counted(self.max_blocks, 'block')}"
        step, width = counted(self.config.step_tokens, "token"), counted(self.table_width, "block")
        attended = f"{step} x {counted(s.num_heads, 'head')} x {s.head_dim} x {item}"
        on_device = {
            "weights": self.weight_bytes,
            "rotary positions": self.rotation_bytes,
            "pool": self.pool_bytes,
            "inputs": self.input_bytes,
            "attention's result": self.attended_bytes,
            "addresses": self.address_bytes,
            "block table": self.block_table_bytes if self._on_cpu else 0,
            "draft model": self.draft_bytes,
        }
        rotation = f"{counted(s.max_model_len, 'position')} x 3 (cos, -sin, sin) x {s.head_dim // 2} x {item}"
        host = "" if self._on_cpu else ", on the host"
        return [
            ("weights", self.weight_bytes, "bytes", weights),
            *([("rotary positions", self.rotation_bytes, "bytes", rotation)] if s.rope else []),
            ("K and V of a token", self.kv_bytes_per_token, "bytes", token),
            ("block", self.block_bytes, "bytes", counted(c.block_size, "token")),
            ("pool", self.pool_bytes, "bytes", f"{blocks} + 1 dummy block"),
            ("tokens in the pool", self.pool_tokens, "tokens", f"{blocks} x {c.block_size:,}"),
            ("longest sequences", self.longest_seqs_in_pool, "sequences", longest),
            ("inputs", self.input_bytes, "bytes", f"{step}, {seqs} of {width}"),
            ("attention's result", self.attended_bytes, "bytes", attended),
            *([("addresses", self.address_bytes, "bytes", "of the weights")] if self.address_bytes else []),
            ("block table", self.block_table_bytes, "bytes", f"[{seqs}, {width}] x {BLOCK_ID_BYTES}{host}"),
            *self._draft_rows(),
            ("total", self.total_bytes, "bytes", " + ".join(name for name, size in on_device.items() if size)),
        ]

    def _draft_rows(self) -> list[tuple[str, int, str, str]]:
        if self.draft is None:
            return []
        how = f"weights {self.draft.weight_bytes:,} + pool {self.draft.pool_bytes:,} + what its steps need"
        return [("draft model", self.draft_bytes, "bytes", how)]
