"""Post 002, a contest entry on an NPU server, on the finished engine: its claims, counted, measured or simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseinfer.engine.block_manager import BlockManager
from roseinfer.models.weights import prepared_copy
from roseinfer.planning.sizes import PlannedEngine

from ..data import post_facts
from ..report.content import PostReport, judged
from ..report.setting import Setting
from ..report.template import Values
from .aborts import abort_section
from .arrays import dtype_section, write_section
from .order import SEED, order_section
from .qkv import qkv_section
from .steps import greedy_section, padding_section, prefill_section, warm_up_section

TOKENS = 128  # of each of the engine's sequences, at most


def engine(setting: Setting) -> PlannedEngine:
    """Plan an engine, with the post's blocks and prefill batch, for all that is counted on an engine."""
    about = post_facts("002")
    batch, block_size = about["prefill_batch_size"], about["block_size"]
    return PlannedEngine(
        model=setting.model or "tiny",
        num_blocks=batch * -(-TOKENS // block_size),
        block_size=block_size,
        max_num_seqs=batch,
        dtype="float32",
        device=str(setting.device),
    )


def reproduce(setting: Setting) -> PostReport:
    about = post_facts("002")
    config = engine(setting)
    model = prepared_copy(setting.load(config))
    setting.say("warm-up, steps and aborts of the engine")
    on_engine = [
        warm_up_section(about, config, model),
        prefill_section(about, config, model),
        padding_section(about, config, model),
        greedy_section(config, model),
        abort_section(config, model),
    ]
    setting.say("products of q, k and v")
    qkv = qkv_section(about, setting)
    setting.say(f"{about['num_requests']:,} requests, simulated in two orders")
    order = order_section(about)
    sections = [load_section(about), order, *on_engine, dtype_section(about), write_section(about), qkv]
    return setting.report("002", {"model": config.model, "seed": SEED}, sections)


def load_section(about: Mapping[str, Any]) -> Values:
    columns = -(-about["seq_length"] // about["block_size"])
    blocks = BlockManager(about["num_blocks"], about["block_size"], about["decode_batch_size"], columns)
    return {"facts": judged("002", {"columns of a block table in the warm-up": blocks.table.ids.shape[1]})}
