"""Post 002: its load test, its pool, and its model's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseinfer.engine.block_manager import BlockManager
from roseinfer.models import model_config

from ..report.content import Grid, Section, judge

# The post names the model, its vocabulary and its longest sequence; the rest of the shape is published with the model.
LLAMA_7B = model_config("random:llama-7b")


def load_section(about: Mapping[str, Any]) -> Section:
    slots, block_size, seq_length = about["decode_batch_size"], about["block_size"], about["seq_length"]
    tokens, requests = about["num_blocks"] * block_size, about["num_requests"]
    blocks = BlockManager(about["num_blocks"], block_size, slots, -(-seq_length // block_size))
    return Section(
        "The load test and the pool",
        [
            f"The post sends {about['requests_per_second']} requests a second for {about['seconds']} seconds, "
            f"{requests:,} in all, to a server that decodes at most {slots} at a time.",
            f"Its pool of {about['num_blocks']:,} blocks of {block_size} tokens is small for that. With all slots "
            "taken each request has few tokens, its prompt included, so the slots can all be filled by short requests "
            "only. The post does not say how long its requests are.",
            "Its survey says what blocks are for: without them a request reserves its longest length, and with them "
            "the last block of each is all that stays unused. Both are counted below.",
        ],
        facts=[
            judge("columns of a block table in the warm-up", about["block_table_columns"], blocks.table.shape[1],
                  why="seq_length / block_size"),
        ],
        grids=[
            Grid(
                "The pool",
                ["what", "number"],
                [
                    ["tokens", tokens],
                    [f"tokens a request, {slots} running", tokens // slots],
                    [f"requests of {seq_length:,} tokens", tokens // seq_length],
                    [f"tokens that {slots} requests reserve without blocks", slots * seq_length],
                    [f"tokens that {slots} requests leave unused with blocks, at most", slots * (block_size - 1)],
                ],
            )
        ],
    )  # fmt: skip
