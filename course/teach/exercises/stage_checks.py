"""Checks of a learner's own stage: its tokens against the reference, what it holds, and the ops of a step."""

from __future__ import annotations

import gc
from collections import Counter, abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from roseinfer.generate import begin, decode_step, generate
from roseinfer.models import Model, ModelConfig, random_model
from roseinfer.profiling import count_ops
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .drawn import draw, require_all
from .explain import explain_tensor, explain_tokens
from .wrong import Wrong

GATHER_SPAN = "roseinfer.decode_step_sessions.build_batched_past"
APPEND_SPAN = "roseinfer.kv.append_token"
NUM_SEQS, NUM_TOKENS = 4, 5  # of a step whose ops are counted
MIXED = [[7] * 3, list(range(1, 70)), [11, 12], [13]]

KV = tuple[Tensor, Tensor]
Read = Callable[[Stage, list[Sequence]], list[list[KV]]]  # [layer][sequence] -> k and v [1, H_kv, T_i, D]


def drawn_model(num_layers: int = 2, num_kv_heads: int = 2) -> Model:
    """Make a small model for many short runs. Its weights are large enough for tokens that change.

    Each call returns a copy: what a stage writes into its weights reaches no other check.
    """
    return deepcopy(_drawn_model(num_layers, num_kv_heads))


@cache
def _drawn_model(num_layers: int, num_kv_heads: int) -> Model:
    config = ModelConfig(
        architecture="gpt2",
        vocab_size=31,
        hidden_size=16,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=4,
        intermediate_size=16,
        max_model_len=192,
    )
    model = random_model(config, seed=1)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(20)
    return model


def require_stage(answer: Any, base: str = "a stage", method: str = "") -> None:
    """Raise Wrong unless the answer is a stage. method: one that it must have. base: the course's stage to name."""
    if not (isinstance(answer, type) and issubclass(answer, Stage) and (not method or hasattr(answer, method))):
        raise Wrong(f"expected a subclass of {base}, got {getattr(answer, '__name__', repr(answer))}")


def require_sizes(stage: Stage, **sizes: int) -> None:
    """Raise Wrong unless the stage has the sizes that it was made with, and its tables as many blocks."""
    for name, size in sizes.items():
        if (got := getattr(stage.tables if name == "num_blocks" else stage, name)) != size:
            raise Wrong(f"made with {name}={size}, the stage has {got}: pass all sizes on")


def stage_on_copy(stage_class: type[Stage], model: Model, num_blocks: int, block_size: int = 64) -> Stage:
    """Make a learner's stage on a copy of the model, with every size given, so that no check rests on its defaults."""
    return stage_class(deepcopy(model), num_blocks=num_blocks, block_size=block_size, max_num_seqs=64)


def require_tokens(
    stage_class: type[Stage],
    model: Model,
    max_tokens: int = 12,
    prompts: list[list[int]] = MIXED,
    block_size: int = 64,
    meaning: str = "",
) -> None:
    """Raise Wrong unless the prompts get the reference's tokens, from attention with as many keys as values.

    meaning: what is said of a wrong token, besides which one it is.
    """
    require_stage(stage_class)
    num_blocks = sum(2 + (len(prompt) + max_tokens) // block_size for prompt in prompts)
    stage = stage_on_copy(stage_class, model, num_blocks, block_size)
    with _KeysAndValuesInPairs():
        seqs = generate(stage, prompts, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    lengths = "mixed lengths" if len({*map(len, prompts)}) > 1 else f"of {len(prompts[0])} tokens"
    for i, (seq, want) in enumerate(zip(seqs, _reference(model, tuple(map(tuple, prompts)), max_tokens), strict=True)):
        if message := explain_tokens(seq.output_ids, want):
            where = f"prompt {i} of {len(prompts)} ({lengths}{f', blocks of {block_size}' * (block_size != 64)})"
            raise Wrong(": ".join(filter(None, (where, message, meaning))))


class _KeysAndValuesInPairs(TorchFunctionMode):
    """Raises Wrong if scaled_dot_product_attention gets keys of more or fewer tokens than values.

    PyTorch's kernel for CPUs does not check: it counts the values and reads as many keys, even beyond the end of a
    slice.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            num_keys, num_values = given["key"].size(-2), given["value"].size(-2)
            if num_keys != num_values:
                raise Wrong(f"attention gets keys of {num_keys} tokens and values of {num_values}: cut both alike")
        return func(*args, **kwargs)


@lru_cache(maxsize=4)
def _reference(model: Model, prompts: tuple[tuple[int, ...], ...], max_tokens: int) -> list[list[int]]:
    return reference_generate(model, list(map(list, prompts)), max_tokens)


class Batch(NamedTuple):
    """Case: prompts of these lengths, `steps` decode steps later, in a stage of a small model.

    A batch in bf16 makes no step: rounding may choose another token, and that is no mistake.
    """

    lengths: tuple[int, ...]
    steps: int
    num_layers: int
    num_kv_heads: int
    block_size: int
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return (
            f"prompt_lens={list(self.lengths)}, num_steps={self.steps}, num_layers={self.num_layers}, "
            f"num_kv_heads={self.num_kv_heads}, block_size={self.block_size}"
        ) + (", a model in bf16" if self.dtype == torch.bfloat16 else "")


def draw_batch(rng: Random) -> Batch:
    lengths = tuple(rng.randint(1, 20) for _ in range(rng.randint(1, 4)))
    return Batch(lengths, rng.randint(0, 2), rng.randint(1, 3), rng.choice((1, 2, 4)), rng.choice((4, 6, 16)))


BATCHES = [
    Batch((3, 5), 0, 2, 2, 64),
    Batch((1,), 1, 1, 1, 64),
    Batch((4, 8), 0, 2, 2, 4),
    Batch((4, 8, 1), 1, 2, 2, 4),
    Batch((3, 7), 1, 2, 4, 4),
    Batch((5, 5, 5), 2, 3, 2, 16),
    Batch((63, 64, 65), 2, 1, 1, 64),
    Batch((2, 1), 1, 5, 1, 4),
    Batch((150, 90), 0, 2, 2, 64, torch.bfloat16),  # the largest: a mistake in fp32, too, is told in fp32
    *draw(draw_batch),
]


@torch.inference_mode()
def require_cached(stage_class: type[Stage], read: Read) -> None:
    """Raise Wrong if `read` finds other keys and values in the learner's stage than in its base, the course's stage.

    Both run the same drawn batches.
    """
    require_stage(stage_class)
    base = next((cls for cls in stage_class.__mro__ if cls.__module__.startswith("stages.")), None)
    if base is None:
        raise Wrong(f"expected a subclass of one of the course's stages, got {stage_class!r}")

    def judge(*case: Any) -> None:
        batch = Batch(*case)
        both = zip(_read(stage_class, batch, read), _read_right(base, batch, read), strict=True)
        for step, (got, want) in enumerate(both):
            _compare(got, want, f"after step {step}" if step else "of a new batch")

    with _nan_in_empty_tensors():
        require_all(BATCHES, judge, lambda *case: str(Batch(*case)))


def _read(stage_class: type[Stage], batch: Batch, read: Read) -> Iterator[list[list[KV]]]:
    """Yield what is cached before each decode step and after the last, with the block of the next token reserved."""
    num_blocks = sum(n // batch.block_size + 2 for n in batch.lengths)
    model = drawn_model(batch.num_layers, batch.num_kv_heads).to(batch.dtype)
    stage = stage_on_copy(stage_class, model, num_blocks, batch.block_size)
    prompts = [[(7 * i + 3 * token) % 31 for token in range(n)] for i, n in enumerate(batch.lengths)]
    seqs = begin(stage, prompts, SamplingParams(max_tokens=batch.steps + 2))
    for step in range(batch.steps + 1):
        if step:
            decode_step(stage, seqs)
        stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
        yield read(stage, seqs)


@cache
def _read_right(base: type[Stage], batch: Batch, read: Read) -> list[list[list[KV]]]:
    return list(_read(base, batch, read))


def require_nothing_kept(stage_class: type[Stage], model: Model) -> None:
    """Raise Wrong if tensors of a batch are alive when its sequences are freed: on the stage, its class, anywhere."""
    stage = stage_on_copy(stage_class, model, num_blocks=8)
    gc.freeze()  # what is there already is passed over
    try:
        generate(stage, [[3, 4, 5], [6] * 9], SamplingParams(max_tokens=3, ignore_eos=True))
        gc.collect()
        storages = [thing.untyped_storage() for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    finally:
        gc.unfreeze()
    if kept := sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()):
        raise Wrong(
            f"the tokens are right, but {kept:,} bytes of a batch stay behind when all its sequences are freed: what "
            "is gathered for one step must not be kept"
        )


def by_sequence(stage: Any, seqs: list[Sequence]) -> list[list[KV]]:
    """Read the keys and values that gather_sequence gives, by layer and sequence."""
    return [[stage.gather_sequence(seq, layer) for seq in seqs] for layer in range(stage.config.num_layers)]


def by_batch(stage: Any, seqs: list[Sequence]) -> list[list[KV]]:
    """Read the keys and values that build_batched_past gives, cut to the tokens of each sequence."""
    lengths = [seq.num_cached_tokens for seq in seqs]
    past = stage.build_batched_past(seqs, max(lengths))
    c = stage.config
    if not isinstance(past, (list, tuple, Tensor)) or len(past) != c.num_layers:
        raise Wrong(f"build_batched_past must return a list of {c.num_layers} pairs, one a layer")
    shape = (len(seqs), c.num_kv_heads, max(lengths), c.head_dim)
    for layer, pair in enumerate(past):
        for name, batch in zip("kv", _pair(pair, layer), strict=True):
            if batch.shape != shape:
                raise Wrong(f"layer {layer}: {name}: shape {tuple(batch.shape)}, expected {shape} = [B, H_kv, T, D]")
            if any(not batch[i, :, n:].isfinite().all() for i, n in enumerate(lengths)):
                raise Wrong(
                    f"layer {layer}: {name}: the slots after a sequence's tokens were never written. That may be NaN, "
                    "and 0 × NaN is NaN: masked slots must hold finite values"
                )
    return [[(k[i : i + 1, :, :n], v[i : i + 1, :, :n]) for i, n in enumerate(lengths)] for k, v in past]


@contextmanager
def _nan_in_empty_tensors() -> Iterator[None]:
    """Fill new tensors of torch.empty and the like with NaN: what happens to lie in memory may be what is right."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])


def _compare(got: list[list[KV]], want: list[list[KV]], when: str) -> None:
    for layer, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for i, (pair, right) in enumerate(zip(mine, theirs, strict=True)):
            for name, one, other in zip("kv", _pair(pair, layer), right, strict=True):
                if message := explain_tensor(one, other):
                    where = f"layer {layer}, prompt {i} ({right[0].size(2)} cached tokens) {when}"
                    raise Wrong(f"{where}: {name}: {_mixed_up(one, name, layer, i, want) or message}")


def _pair(pair: object, layer: int) -> KV:
    """Return k and v of a tuple, a list or a tensor of the two. Raises Wrong for anything else."""
    if not isinstance(pair, (tuple, list, Tensor)) or len(pair) != 2 or not all(map(torch.is_tensor, pair)):
        raise Wrong(f"layer {layer}: expected a pair of tensors (k, v), got {type(pair).__name__}")
    return pair[0], pair[1]


def _mixed_up(got: Tensor, name: str, layer: int, i: int, want: list[list[KV]]) -> str:
    """Say whose keys or values these are, if another's: for all tokens, or only for the newest; "" if unknown."""
    if got.dim() != 4:
        return ""
    right = want[layer][i]["kv".index(name)]
    newest = _num_wrong_at_the_end(got, right)
    what = f"token {right.size(2) - 1}: " if newest == 1 < right.size(2) else ""
    if newest and not got[:, :, -newest:].any():
        return f"{what}nothing is written there"
    for other_layer, sequences in enumerate(want):
        for other, pair in enumerate(sequences):
            for other_name, tensor in zip(("keys", "values"), pair, strict=True):
                if explain_tensor(got[:, :, -newest:], tensor[:, :, -newest:]) is None:
                    if other_layer != layer:
                        return (
                            f"{what}these are layer {other_layer}'s {other_name}: is one tensor used for every layer?"
                        )
                    if other != i:
                        return f"{what}these are prompt {other}'s {other_name}"
                    return f"{what}these are the {other_name}, not the {'keys' if name == 'k' else 'values'}"
    return ""


def _num_wrong_at_the_end(got: Tensor, right: Tensor) -> int:
    """Count the wrong tokens at the end if all before them are right; 0 if not, and for a wrong shape."""
    if got.shape != right.shape:
        return 0
    wrong = [t for t in range(right.size(2)) if explain_tensor(got[:, :, t], right[:, :, t])]
    newest = right.size(2) - wrong[0]
    return newest if newest == len(wrong) else 0


def step_of(stage_class: type[Stage], model: Model, lengths: abc.Sequence[int]) -> Callable[[], list[int]]:
    """Make a decode step of a batch, with a prompt of each of these lengths."""
    stage = stage_on_copy(stage_class, model, num_blocks=sum(2 + n // 64 for n in lengths))
    seqs = begin(stage, [[3 + i] * n for i, n in enumerate(lengths)], SamplingParams())
    return lambda: decode_step(stage, seqs)


def step_ops(stage_class: type[Stage], model: Model, span: str, lengths: abc.Sequence[int]) -> Counter[str]:
    """Count the aten ops inside the first such span of one decode step."""
    return count_ops(step_of(stage_class, model, lengths), span=span)


def cached_in(lengths: abc.Sequence[int]) -> str:
    """Say how many tokens a batch has cached, such as "4 × 40"."""
    return f"{len(lengths)} × {lengths[0]}" if len(set(lengths)) == 1 else str(list(lengths))


def zeroed_tensors(ops: Counter[str]) -> int:
    """Count the tensors that were zeroed, by zero_ or fill_.

    zeros, zeros_like and new_zeros end in a zero_, full in a fill_, and on some devices a zero_ starts a fill_.
    """
    return max(ops["aten::zero_"], ops["aten::fill_"])
