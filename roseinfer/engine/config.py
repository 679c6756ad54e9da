"""EngineConfig: the settings of an engine, and their checks. Engine, LLM, the dry run and the simulator take these."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import refuse_wrong_arguments, require_count
from roseinfer.blocks import BLOCK_SIZE

from .policies import Policy, policy_for
from .speculation.settings import SpeculativeConfig, speculative_config

if TYPE_CHECKING:  # a command makes flags of the fields below, and its --help does not wait for torch
    from roseinfer.models import ModelConfig

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
AUTO = "auto"  # dtype of an LLM: the one that the checkpoint says it has
# Tokens of one step, unless there are more sequences. Products are at their best from some hundreds on, and with more
# than this a CPU's caches no longer hold what one layer hands to the next.
STEP_TOKENS = 1024


@refuse_wrong_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an engine, whatever its model. All are given by name.

    Args:
        num_blocks: blocks of the KV pool.
        block_size: tokens of a block.
        max_num_seqs: sequences that run at a time.
        max_model_len: tokens of the longest sequence. None: as many as the model has positions.
        max_num_batched_tokens: tokens of a step; a longer prompt is computed in chunks. None: STEP_TOKENS, or
            max_num_seqs if that is more.
        scheduling_policy: the name of one in policies.py, or a Policy.
        enable_prefix_caching: let sequences share full blocks with the same text.
        enforce_eager: start every operation by itself: without graphs on a GPU, without the compiled step on a CPU.
        async_scheduling: launch a step before the tokens of the previous one are read. None: only on a GPU, where it
            should pay.
        speculative: a dict of SpeculativeConfig's fields, such as {"method": "ngram", "num_tokens": 4}; steps then take
            turns.

    Raises ValueError for a wrong value, and for an argument that is unknown (with the nearest name) or missing.
    """

    num_blocks: int = field(metadata={"help": "blocks of the KV pool"})
    block_size: int = field(default=BLOCK_SIZE, metadata={"help": "tokens of a block"})
    max_num_seqs: int = field(default=64, metadata={"help": "sequences that run at a time"})
    max_model_len: int | None = field(
        default=None, metadata={"help": "tokens of the longest sequence; the model's when not given"}
    )
    max_num_batched_tokens: int | None = field(
        default=None, metadata={"help": f"tokens of one step; when not given {STEP_TOKENS:,}, or one for each sequence"}
    )
    scheduling_policy: str | Policy = "fcfs"
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    async_scheduling: bool | None = None
    speculative: SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs"):
            require_count(name, getattr(self, name), at_least=1)
        if self.max_model_len is not None:
            require_count("max_model_len", self.max_model_len, at_least=1)
        _ = self.step_tokens  # checked
        policy_for(self.scheduling_policy)
        for name in ("enable_prefix_caching", "enforce_eager"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.async_scheduling, bool | None):
            raise ValueError(f"async_scheduling must be True, False or None, got {self.async_scheduling!r}")
        object.__setattr__(self, "speculative", speculative_config(self.speculative))
        if self.speculative:
            self.speculative.check_sizes(self.step_tokens, self.max_model_len)
            if self.async_scheduling:
                raise ValueError(
                    "async_scheduling=True and speculative exclude each other: which drafts hold is known only after "
                    "the step before. Leave async_scheduling out, or set it to False"
                )

    def settings(self) -> dict[str, Any]:
        """Return the keywords that Engine takes."""
        return {own.name: getattr(self, own.name) for own in fields(EngineConfig)}

    def longest(self, shape: ModelConfig, name: str = "the model") -> int:
        """Return how long a sequence may be, in tokens. Raises ValueError for more than the model has positions."""
        if self.max_model_len is None:
            return shape.max_model_len
        if self.max_model_len > shape.max_model_len:
            raise ValueError(
                f"max_model_len={self.max_model_len} is more positions than {name} has, "
                f"allowed: at most {shape.max_model_len}"
            )
        return self.max_model_len

    @property
    def step_rows(self) -> int:
        """The most tokens that one step chooses: one for each sequence, and one for each drafted token."""
        if self.speculative is None:
            return self.max_num_seqs
        return min(self.step_tokens, self.max_num_seqs * (1 + self.speculative.num_tokens))

    @property
    def step_tokens(self) -> int:
        """Tokens of one step: max_num_batched_tokens, or its default."""
        if self.max_num_batched_tokens is None:
            return max(STEP_TOKENS, self.max_num_seqs)
        require_count("max_num_batched_tokens", self.max_num_batched_tokens, at_least=1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than a step of max_num_seqs="
                f"{self.max_num_seqs} sequences may need, one token each: make it larger, or max_num_seqs smaller"
            )
        return self.max_num_batched_tokens


def check_dtype(dtype: object, *others: str) -> None:
    """Raise ValueError unless it names a dtype that weights and KV cache can have, or is one of the others."""
    allowed = (*DTYPE_BYTES, *others)
    if not isinstance(dtype, str) or dtype not in allowed:
        how = f": {dtype[3:]}-bit weights are quantization={dtype!r}" if dtype in ("int8", "int4") else ""
        raise ValueError(f"dtype must be one of {', '.join(allowed)}, got {dtype!r}{how}")


def check_device(device: object) -> None:
    """Raise ValueError unless torch knows a device of that name. Whether this machine has it is not checked."""
    if not isinstance(device, str):
        raise ValueError(f"device must be a string such as 'cpu' or 'cuda:0', got {device!r}")
    import torch

    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not a device: {str(error).splitlines()[0]}") from error


def check_block_size(block_size: int, device_type: str) -> None:
    """Raise ValueError for a block size that the kernels of that device cannot take."""
    if device_type == "cuda" and block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two on a GPU, got {block_size}")
