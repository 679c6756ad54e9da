"""What the contenders of a race have in common, and how tables name those that run in several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roseinfer.blocks import BLOCK_SIZE

ENGINE = "engine"
QUANTIZED = ("int8", "int4")  # precisions of weights alone: K, V and the rest are in fp32
HF_NAME = "HF generate"
HF_NAMES = {"dynamic": HF_NAME, "static": f"{HF_NAME}, static cache"}  # by the kind of its KV cache


@dataclass(frozen=True)
class RaceSetting:
    """What the contenders of a race have in common. spec, device, speculative: as load_model and LLM take them.

    most_seqs: sequences at a time. most_tokens: prompt and output of the longest one. speculative is for a further
    engine that runs beside the one without drafts.
    """

    spec: str
    device: str
    most_seqs: int
    most_tokens: int
    speculative: dict[str, Any] | None = None

    def num_blocks(self, num_seqs: int, block_size: int = BLOCK_SIZE) -> int:
        """Count the blocks with which num_seqs sequences can run at a time, however long."""
        return num_seqs * -(-self.most_tokens // block_size)
