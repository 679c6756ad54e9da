"""Engines on small models, what they are asked for, and what they have to leave."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable
from dataclasses import replace

from oracles import prompts_of

from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.models import Model, random_model
from roseinfer.sequence import SamplingParams, Sequence

# Settings under which sequences are cut, preempted, shared or neither, and get the same tokens.
SCHEDULES = {
    "roomy": {},
    "chunks": {"max_num_batched_tokens": 8},
    "a small pool": {"num_blocks": 9},
    "a small pool, chunks": {"num_blocks": 9, "max_num_batched_tokens": 8},
    "no prefix cache": {"enable_prefix_caching": False, "num_blocks": 9},
}


def engine_of(model: Model, seqs: Iterable[Sequence] = (), **settings) -> Engine:
    """With these sequences added, and with 64 blocks of 8 tokens and four places unless settings say otherwise."""
    engine = Engine(model, **{"num_blocks": 64, "block_size": 8, "max_num_seqs": 4} | settings)
    for seq in seqs:
        engine.add(seq)
    return engine


def widened(model: Model) -> Model:
    """A model like it whose widths are multiples of 64, as products in 8 and 4 bits read them without padding."""
    sizes = {"hidden_size": 64, "head_dim": 16, "num_heads": 4, "intermediate_size": 128}
    wide = random_model(replace(model.config, **sizes), seed=1)
    for parameter in wide.parameters():
        if parameter.dim() > 1:
            parameter.mul_(6)
    return wide


def requests(model: Model, lengths: abc.Sequence[int], max_tokens: int = 9, **wishes) -> list[Sequence]:
    """Sequences of random prompts, which share nothing."""
    params = SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True} | wishes)
    return [Sequence(prompt, params) for prompt in prompts_of(lengths, model.config.vocab_size)]


def run_out(engine: Engine, seqs: Iterable[Sequence] = ()) -> list[Sequence]:
    """These sequences, added and run to their ends with all that is there; nothing is left in the engine."""
    seqs = list(seqs)
    for _ in drive(engine, seqs):
        engine.blocks.check()
    assert_empty(engine)
    return seqs


def assert_empty(engine: Engine, where: str = "") -> None:
    """Every block is free, and nothing is left of any request."""
    engine.blocks.check()
    assert engine.blocks.num_free == engine.blocks.num_blocks and not any(engine.blocks.pool.ref_counts), where
    assert not engine.has_work and not engine.in_flight and not engine.metrics.live, where
