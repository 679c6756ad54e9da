"""Promises about tokens: in any batch, each sequence gets the tokens that it would get alone and without a cache."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from roseinfer.generate import begin, generate
from roseinfer.models import Attend, Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..broken_promises import lengths_text, require_all_free, require_logits, require_tokens
from ..making import stage_of
from ..small_models import (
    LLAMAS,
    expected,
    expected_by_transformers,
    half_logits,
    half_model,
    last_logits,
    prompts_for,
    text_logits,
    text_of,
)

MIXED = (3, 17, 1, 64, 30, 65)
MIXED_OUTPUTS = (5, 12, 70, 9, 1, 20)
ROUNDING = 1.4  # times the reference's own. Right stages have 0.9 to 1.1 of it; a bf16 cache in fp16 has 1.6 and more.


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def fits_the_seam(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=4)
    seqs = begin(stage, prompts_for("gpt2", (3, 5)), greedy(4))

    def look(_: Model, args: tuple[Tensor, Tensor, Attend]) -> tuple[Tensor, Tensor, Attend]:
        token_ids, positions, step = args
        assert callable(step), f"build returned {step!r}; the model calls what it returns: step(layer, q, k, v)"

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = step(layer, q, k, v)
            require_attention(out, layer, q)
            return out

        return token_ids, positions, attend

    hook = stage.model.register_forward_pre_hook(look)
    try:
        stage.decode(seqs)
    finally:
        hook.remove()


def require_attention(out: object, layer: int, q: Tensor) -> None:
    """Require that attention's output is a tensor [B, H, D] with the shape and dtype of q."""
    where = f"step(layer={layer}, q, k, v)"
    assert isinstance(out, Tensor), f"{where} returned {out!r}, expected a tensor [B, H, D] like q"
    assert out.shape == q.shape, f"{where} returned shape {tuple(out.shape)}, expected {tuple(q.shape)} = [B, H, D]"
    assert out.dtype == q.dtype, f"{where} returned {out.dtype}, expected {q.dtype} like q"


def one_sequence(stage_class: type[Stage], device: str) -> None:
    _require_reference(stage_class, device, (5,), 8)


def equal_lengths(stage_class: type[Stage], device: str) -> None:
    _require_reference(stage_class, device, (6, 6, 6), 8)


def mixed_lengths(stage_class: type[Stage], device: str) -> None:
    _require_reference(stage_class, device, (3, 17, 1, 9), 8)


def block_edges(stage_class: type[Stage], device: str) -> None:
    for length in (63, 64, 65, 127, 128):
        _require_reference(stage_class, device, (length,), 4, num_blocks=4)


def small_blocks(stage_class: type[Stage], device: str) -> None:
    _require_reference(stage_class, device, (1, 4, 5, 8), 10, num_blocks=40, block_size=4)


def rows_in_order(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=4)
    seqs = begin(stage, prompts_for("gpt2", (3, 7)), greedy(8))[::-1]
    for i, (row, seq) in enumerate(zip(stage.decode(seqs), seqs, strict=True)):
        where = f"two sequences, the second one given first: in row {i}"
        require_logits(row, last_logits("gpt2", tuple(seq.token_ids), device), 1e-4, where)


def batch_grows_and_shrinks(stage_class: type[Stage], device: str) -> None:
    _require_refilled(stage_class, device, "gpt2", 1)
    _require_refilled(stage_class, device, "gpt2", 3)


def shared_kv_heads(stage_class: type[Stage], device: str) -> None:
    for name, places in (("gpt2, 2 KV heads", 16), ("gpt2, 2 KV heads", 3), ("gpt2, 1 KV head", 3)):
        _require_refilled(stage_class, device, name, places)


def llama_families(stage_class: type[Stage], device: str) -> None:
    for family in LLAMAS:
        _require_refilled(stage_class, device, family, 3)


def equals_transformers(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "tiny", device, num_blocks=16)
    seqs = generate(stage, prompts_for("tiny", MIXED), greedy(12))
    require_tokens(seqs, expected_by_transformers("tiny", MIXED, 12, device), "transformers")


def equals_transformers_in_full_size(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "random:gpt2", device, num_blocks=3)
    seqs = generate(stage, prompts_for("random:gpt2", (2, 9, 5)), greedy(4))
    require_tokens(seqs, expected_by_transformers("random:gpt2", (2, 9, 5), 4, device), "transformers")


def half_precision(stage_class: type[Stage], device: str) -> None:
    """Check that rounding costs about what it costs the reference in the same dtype, past 256 and past 2,048 tokens.

    Beyond these numbers bf16 and fp16 can no longer count.
    """
    for dtype in (torch.float16, torch.bfloat16):
        for name, lengths in (("two layers", (20, 4, 11)), ("long", (300, 2_060))):
            off, usual = _rounding(stage_class, device, name, dtype, lengths)
            assert off <= ROUNDING * usual, (
                f"{dtype}, sequences of {lengths_text(lengths)} tokens: the logits are off from those in fp32 by "
                f"{off:.2g} of their size (root mean square), the reference in {dtype} by {usual:.2g}"
            )


def _rounding(
    stage_class: type[Stage], device: str, name: str, dtype: torch.dtype, lengths: tuple[int, ...], num_steps: int = 6
) -> tuple[float, float]:
    """Return how far the stage's logits are from the fp32 reference's, and the cache-free reference's in that dtype."""
    texts = [text_of(name, length + num_steps, seed) for seed, length in enumerate(lengths)]
    exact = torch.stack([text_logits(name, text, device)[-num_steps:] for text in texts])
    usual = torch.stack([half_logits(name, text, device, dtype)[-num_steps:] for text in texts])
    stage = stage_of(stage_class, deepcopy(half_model(name, device, dtype)), device, num_blocks=40)
    seqs = [Sequence(list(text[:-num_steps]), SamplingParams()) for text in texts]
    for seq in seqs:
        stage.prefill(seq)
    steps = []
    for i in range(-num_steps, 0):
        for seq, text in zip(seqs, texts, strict=True):
            seq.append(text[i])
        steps.append(stage.decode(seqs))
    return _distance(torch.stack(steps, dim=1), exact), _distance(usual, exact)


def _distance(got: Tensor, exact: Tensor) -> float:
    return float((got.float() - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())


def _require_reference(
    stage_class: type[Stage],
    device: str,
    lengths: tuple[int, ...],
    max_tokens: int,
    num_blocks: int = 16,
    block_size: int = 64,
) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=num_blocks, block_size=block_size)
    seqs = begin(stage, prompts_for("gpt2", lengths), greedy(max_tokens))
    rows = []  # (where, logits, the text that they follow)
    for step in range(max_tokens - 1):
        for i, (row, seq) in enumerate(zip(stage.decode(seqs), seqs, strict=True)):
            where = (
                f"sequence {i} of {len(seqs)}, prompt of {lengths[i]}: the tokens are right, but in decode step {step}"
            )
            rows.append((where, row, tuple(seq.token_ids)))
            seq.append(int(row.argmax()))
    require_tokens(seqs, expected("gpt2", lengths, max_tokens, device))
    for where, row, token_ids in rows:
        require_logits(row, last_logits("gpt2", token_ids, device), 1e-4, where)


def _require_refilled(stage_class: type[Stage], device: str, name: str, places: int) -> None:
    """Check mixed prompts and outputs, `places` at a time, in a batch that is refilled as soon as a sequence ends."""
    stage = stage_of(stage_class, name, device, num_blocks=16, max_num_seqs=places)
    seqs = generate(stage, prompts_for(name, MIXED), [greedy(n) for n in MIXED_OUTPUTS])
    tokens = expected(name, MIXED, max(MIXED_OUTPUTS), device)
    try:
        require_tokens(seqs, [row[:n] for row, n in zip(tokens, MIXED_OUTPUTS, strict=True)])
    except AssertionError as error:
        raise AssertionError(f"model {name}, {places} of {len(MIXED)} at once: {error}") from None
    assert [seq.finish_reason for seq in seqs] == ["length"] * len(seqs), "a sequence ended for another reason"
    require_all_free(stage, f"with prompts of {lengths_text(MIXED)} tokens run to their ends")
