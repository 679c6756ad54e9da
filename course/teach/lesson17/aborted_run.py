"""serve_aborting: a server that aborts complete requests, on a real engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.simulator import EngineSetting
from roseinfer.simulator.measure import real_engine

WANTED = (3, 5, 2, 6, 4, 3, 5, 8)


def serve_aborting(
    model: Model, abort: Callable[[Any, set[int]], None], wanted: tuple[int, ...] = WANTED
) -> tuple[int, list[int]]:
    """Serve requests that want so many tokens each, and pass the ids of complete ones to abort(engine, ids).

    The engine's own limit ends a request one token later. Returns the number of tokens that were computed, and how many
    blocks were held after each step.
    """
    setting = EngineSetting(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=32)
    engine = real_engine(model, setting)
    limit: dict[int, int] = {}
    for number, num_tokens in enumerate(wanted):
        seq = Sequence([7 + number] * 3, SamplingParams(max_tokens=num_tokens + 1, ignore_eos=True))
        limit[seq.seq_id] = num_tokens
        engine.add(seq)
    made, held = 0, []
    while engine.has_work:
        done = engine.step()
        made += len(done)
        abort(engine, {seq.seq_id for seq in done if len(seq.output_ids) == limit[seq.seq_id]})
        held.append(engine.blocks.num_blocks - engine.blocks.num_free)
    return made, held
