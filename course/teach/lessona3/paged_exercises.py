"""Checkers of a3.7 and a3.8: scores, and attention, through a block table."""

from __future__ import annotations

from functools import partial
from random import Random

import torch
from torch import Tensor

from ..exercises.drawn import Case, draw, inputs
from .rung_checks import register_rung
from .rungs import Pool, pool, scale_of

# a3.7


def _keys(case: Pool, context_len: int, blocks: Tensor | None = None) -> Tensor:
    """Look up the keys [T, D] of the sequence, or those of other blocks, in fp64."""
    chosen = case.block_table if blocks is None else blocks
    return case.k_cache[chosen.long()].flatten(0, 1)[:context_len].double()


def _scores(context_len: int, block_size: int, head_dim: int, mistake: str = "") -> Tensor:
    case = pool(context_len, block_size, head_dim)
    index = torch.arange(len(case.block_table))
    blocks = {"index": index, "first": case.block_table[:1].expand(len(index))}.get(mistake)
    keys = _keys(case, context_len, blocks)
    if mistake == "slots":  # the block's id counts slots, not blocks
        at = case.block_table.repeat_interleave(block_size) + torch.arange(block_size).repeat(len(index))
        keys = case.k_cache.flatten(0, 1)[at[:context_len].long()].double()
    if mistake == "width":
        at = case.block_table.repeat_interleave(block_size) * block_size + torch.arange(block_size).repeat(len(index))
        keys = case.k_cache.flatten()[at[:context_len, None].long() + torch.arange(head_dim)].double()
    scale = scale_of(head_dim)
    scale = {"unscaled": 1.0, "twice": scale**2, "own": head_dim**-0.5}.get(mistake, scale)
    return (keys @ case.q.double() * scale).float()


def _draw_scores(rng: Random) -> Case:
    block_size = rng.choice((2, 4))
    return rng.randint(1, 3 * block_size), block_size, 6 - block_size


INDEX = "the index is used as the block's id: the id is what block_table holds at that index"
UNSCALED = "the scores are not multiplied by scale"
OWN_SCALE = "the scores are multiplied by HEAD_DIM ** -0.5: the factor is the argument scale"
SLOTS = "block b begins at b * BLOCK_SIZE slots: slot s of it is at (b * BLOCK_SIZE + s) * HEAD_DIM"

register_rung(
    "a3.7",
    [(1, 2, 4), (2, 2, 4), (3, 2, 4), (4, 4, 2), (5, 4, 2), (8, 8, 4), *draw(_draw_scores, 44)],
    _scores,
    {
        INDEX: partial(_scores, mistake="index"),
        "every program reads the first block: program p's id is block_table[p]": partial(_scores, mistake="first"),
        UNSCALED: partial(_scores, mistake="unscaled"),
        OWN_SCALE: partial(_scores, mistake="own"),
        "the scores are multiplied by scale twice": partial(_scores, mistake="twice"),
        SLOTS: partial(_scores, mistake="slots"),
        "a slot is HEAD_DIM values wide: the slot's number is multiplied by HEAD_DIM": partial(
            _scores, mistake="width"
        ),
    },
    inputs("context_len", "BLOCK_SIZE", "HEAD_DIM"),
)


# a3.8


def _attention(context_len: int, block_size: int, head_dim: int, kind: str, mistake: str = "") -> Tensor:
    case = pool(context_len, block_size, head_dim, kind)
    keys, values = (tokens[:context_len] for tokens in case.tokens)
    if mistake in ("index", "first", "one block", "last"):
        index = torch.arange(len(case.block_table))
        other = {"index": index, "first": case.block_table[:1].expand(len(index))}
        blocks = other.get(mistake, case.block_table).long()
        count = {"one block": min(block_size, context_len), "last": context_len - 1}.get(mistake, context_len)
        keys, values = (cache[blocks].flatten(0, 1)[:count].double() for cache in (case.k_cache, case.v_cache))
    if mistake == "keys":
        values = keys
    if mistake == "zeros":
        keys, values = (
            torch.cat([part, part.new_zeros(-context_len % block_size, head_dim)]) for part in (keys, values)
        )
    scale = {"unscaled": 1.0, "own": head_dim**-0.5}.get(mistake, scale_of(head_dim))
    scores = keys @ case.q.double() * scale
    if mistake == "mean":
        return values.mean(0).float()
    if mistake == "undivided":
        return (torch.exp(scores - scores.max()) @ values).float()
    if mistake in ("total", "acc", "both"):
        return _not_rescaled(scores, values, block_size, mistake)
    return (scores.softmax(0) @ values).float()


def _not_rescaled(scores: Tensor, values: Tensor, block_size: int, what: str) -> Tensor:
    """Compute attention block by block with a mistake. what: the sum that does not shrink when a larger score comes."""
    top, total, acc = torch.tensor(-torch.inf).double(), torch.zeros(()).double(), torch.zeros(values.size(1)).double()
    for part, of in zip(scores.split(block_size), values.split(block_size), strict=True):
        new_top = torch.maximum(top, part.max())
        weights, shrink = torch.exp(part - new_top), torch.exp(top - new_top)
        total = total * (1.0 if what in ("total", "both") else shrink) + weights.sum()
        acc = acc * (1.0 if what in ("acc", "both") else shrink) + weights @ of
        top = new_top
    return (acc / total).float()


KINDS = ("", "falling", "rising", "rising", "large", "far below 0")


def _draw_attention(rng: Random) -> Case:
    block_size = rng.choice((2, 4))
    return rng.randint(1, 2 * block_size), block_size, 6 - block_size, rng.choice(KINDS)


def _describe(context_len: int, block_size: int, head_dim: int, kind: str) -> str:
    case = f"context_len={context_len}, BLOCK_SIZE={block_size}, HEAD_DIM={head_dim}"
    return f"{case}{kind and ', scores ' + kind}"


register_rung(
    "a3.8",
    [
        (1, 2, 4, ""),
        (2, 2, 4, ""),
        (3, 2, 4, ""),
        (4, 2, 4, "rising"),
        (4, 2, 4, "falling"),
        (5, 2, 4, "rising"),
        (9, 4, 4, "large"),
        (3, 2, 4, "far below 0"),
        *draw(_draw_attention, 42),
    ],
    _attention,
    {
        "acc is not rescaled: multiply it by exp(top - new_top) before top is replaced": (
            partial(_attention, mistake="acc")
        ),
        "total is not rescaled: multiply it by exp(top - new_top) before top is replaced": (
            partial(_attention, mistake="total")
        ),
        "total and acc are not rescaled: multiply both by exp(top - new_top) before top is replaced": (
            partial(_attention, mistake="both")
        ),
        "slots after the last token take part in the softmax: their score must be -inf": (
            partial(_attention, mistake="zeros")
        ),
        "it is not divided by total": partial(_attention, mistake="undivided"),
        "the weighted sum is of keys: the values are in v_cache": partial(_attention, mistake="keys"),
        "only the first block is walked over: the loop goes to context_len": partial(_attention, mistake="one block"),
        "the last token is left out: token < context_len": partial(_attention, mistake="last"),
        "that is the plain mean of the values: each has its softmax weight": partial(_attention, mistake="mean"),
        INDEX: partial(_attention, mistake="index"),
        "every tile is the first block: the table's entry is start // BLOCK_SIZE": partial(_attention, mistake="first"),
        UNSCALED: partial(_attention, mistake="unscaled"),
        OWN_SCALE: partial(_attention, mistake="own"),
    },
    _describe,
    if_nan="exp overflows above 88, or total is 0: top begins at -inf, the loop goes to context_len, the factor "
    "exp(top - new_top) is not upside down, and the new top is the larger of the old one and the tile's largest score",
    budget={"k_cache": 1, "v_cache": 1},
)
