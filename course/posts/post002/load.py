"""Post 002: its load test, its pool, and its model's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseinfer.engine.block_manager import BlockManager
from roseinfer.models import model_config

from ..report.content import judge
from ..report.template import Values

# The post names the model, its vocabulary and its longest sequence; the rest of the shape is published with the model.
LLAMA_7B = model_config("random:llama-7b")


def load_section(about: Mapping[str, Any]) -> Values:
    slots, block_size, seq_length = about["decode_batch_size"], about["block_size"], about["seq_length"]
    blocks = BlockManager(about["num_blocks"], block_size, slots, -(-seq_length // block_size))
    columns = judge(
        "columns of a block table in the warm-up",
        about["block_table_columns"],
        blocks.table.ids.shape[1],
        why="seq_length / block_size",
    )
    return {
        "about": about,
        "slots": slots,
        "block_size": block_size,
        "seq_length": seq_length,
        "tokens": about["num_blocks"] * block_size,
        "facts": [columns],
    }
