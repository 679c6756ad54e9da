"""What checkers of a learner's own stage share: its tokens against the reference, what it holds, the ops of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from roseinfer.generate import begin, decode_step, generate
from roseinfer.models import Model, ModelConfig, random_model
from roseinfer.profiling import count_ops
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .exercise import Wrong
from .explain import explain_tensor, explain_tokens

GATHER_SPAN = "roseinfer.decode_step_sessions.build_batched_past"
APPEND_SPAN = "roseinfer.kv.append_token"
NUM_SEQS, NUM_TOKENS = 4, 5  # of the step that step_ops counts
MIXED = [[7] * 3, list(range(1, 70)), [11, 12], [13]]

KV = tuple[Tensor, Tensor]
Read = Callable[[Stage, list[Sequence]], list[list[KV]]]  # [layer][sequence] -> k and v [1, H_kv, T_i, D]


@cache
def drawn_model(num_layers: int = 2, num_kv_heads: int = 2) -> Model:
    """A model so small that many batches run in no time; its weights are large enough for tokens that change."""
    config = ModelConfig(
        architecture="gpt2", vocab_size=31, hidden_size=16, num_layers=num_layers, num_heads=4,
        num_kv_heads=num_kv_heads, head_dim=4, intermediate_size=16, max_model_len=192,
    )  # fmt: skip
    model = random_model(config, seed=1)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(20)
    return model


def require_stage(stage_class: type[Stage]) -> None:
    if not (isinstance(stage_class, type) and issubclass(stage_class, Stage)):
        raise Wrong(f"expected a subclass of a stage, got {stage_class!r}")


def require_tokens(stage_class: type[Stage], model: Model, max_tokens: int = 12) -> None:
    """Raises Wrong unless a mixed batch gives the reference's tokens."""
    require_stage(stage_class)
    stage = stage_class(model, num_blocks=8)
    seqs = generate(stage, MIXED, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    for i, (seq, want) in enumerate(zip(seqs, reference_generate(model, MIXED, max_tokens), strict=True)):
        if message := explain_tokens(seq.output_ids, want):
            raise Wrong(f"prompt {i} of {len(MIXED)} (mixed lengths): {message}")


@torch.inference_mode()
def require_cached(stage_class: type[Stage], model: Model, read: Read) -> None:
    """Raises Wrong where `read` finds other keys and values in the learner's stage than in the course's stage that it
    is made from: on a mixed batch, before a step and behind one."""
    require_stage(stage_class)
    base = next((cls for cls in stage_class.__mro__ if cls.__module__.startswith("stages.")), None)
    if base is None:
        raise Wrong(f"expected a subclass of one of the course's stages, got {stage_class!r}")
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    stages = [cls(model, num_blocks=8) for cls in (stage_class, base)]
    batches = [begin(stage, MIXED, params) for stage in stages]
    for when in ("of a new batch", "after one step"):
        got, want = (read(stage, seqs) for stage, seqs in zip(stages, batches, strict=True))
        _compare(got, want, when)
        for stage, seqs in zip(stages, batches, strict=True):
            decode_step(stage, seqs)


def by_sequence(stage: Stage, seqs: list[Sequence]) -> list[list[KV]]:
    """What gather_sequence gives."""
    return [[stage.gather_sequence(seq, layer) for seq in seqs] for layer in range(stage.config.num_layers)]


def by_batch(stage: Stage, seqs: list[Sequence]) -> list[list[KV]]:
    """What build_batched_past gives, cut to each sequence's own tokens."""
    lengths = [seq.num_cached_tokens for seq in seqs]
    past = stage.build_batched_past(seqs, max(lengths))
    if not isinstance(past, list) or len(past) != stage.config.num_layers:
        raise Wrong(f"build_batched_past must return a list of {stage.config.num_layers} pairs, one a layer")
    c = stage.config
    shape = (len(seqs), c.num_kv_heads, max(lengths), c.head_dim)
    for layer, pair in enumerate(past):
        for name, batch in zip("kv", _pair(pair, layer), strict=True):
            if batch.shape != shape:
                raise Wrong(f"layer {layer}: {name}: shape {tuple(batch.shape)}, expected {shape} = [B, H_kv, T, D]")
    return [[(k[i : i + 1, :, :n], v[i : i + 1, :, :n]) for i, n in enumerate(lengths)] for k, v in past]


def _compare(got: list[list[KV]], want: list[list[KV]], when: str) -> None:
    for layer, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for i, (pair, right) in enumerate(zip(mine, theirs, strict=True)):
            for name, one, other in zip("kv", _pair(pair, layer), right, strict=True):
                if message := explain_tensor(one, other):
                    where = f"layer {layer}, prompt {i} ({right[0].size(2)} cached tokens) {when}"
                    raise Wrong(f"{where}: {name}: {_mixed_up(one, name, layer, i, want) or message}")


def _pair(pair: object, layer: int) -> KV:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(map(torch.is_tensor, pair)):
        raise Wrong(f"layer {layer}: expected a pair of tensors (k, v), got {type(pair).__name__}")
    return pair[0], pair[1]


def _mixed_up(got: Tensor, name: str, layer: int, i: int, want: list[list[KV]]) -> str:
    """Whose keys or values these are, when they are somebody else's."""
    for other_layer, sequences in enumerate(want):
        for other_name, tensor in zip("kv", sequences[i], strict=True):
            if explain_tensor(got, tensor) is None:
                what = "keys" if other_name == "k" else "values"
                if other_layer == layer:
                    return f"these are the {what}, not the {'keys' if name == 'k' else 'values'}"
                return f"these are layer {other_layer}'s {what}: is one tensor filled again for every layer?"
    return ""


def equal_step(stage_class: type[Stage], model: Model, num_seqs: int, num_tokens: int) -> Callable[[], list[int]]:
    """A decode step of so many sequences, each with a prompt of num_tokens: what it costs is easy to say."""
    stage = stage_class(model, num_blocks=2 * num_seqs)
    seqs = begin(stage, [[3 + i] * num_tokens for i in range(num_seqs)], SamplingParams())
    return lambda: decode_step(stage, seqs)


def step_ops(stage_class: type[Stage], model: Model, span: str) -> Counter[str]:
    """aten ops inside the first such span of one decode step, of NUM_SEQS equal sequences."""
    return count_ops(equal_step(stage_class, model, NUM_SEQS, NUM_TOKENS), span=span)


def zeroed_tensors(ops: Counter[str]) -> int:
    """zeros, zeros_like and new_zeros end in a zero_, full in a fill_, and on some devices a zero_ starts a fill_."""
    return max(ops["aten::zero_"], ops["aten::fill_"])
