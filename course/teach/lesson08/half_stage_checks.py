"""Checks of the first half of a learner's stage, for 08.3: prefills, frees, and errors in the middle of a prefill."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from course.contract.small_models import small_llama, small_model
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import PromptAttention

from ..exercises.drawn import draw, require_all
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import named_tensors
from ..exercises.wrong import Wrong

KV = tuple[Tensor, Tensor]
MODELS: dict[str, Callable[[], Model]] = {
    "2 layers, 4 KV heads": small_model,
    "2 layers, 2 KV heads": lambda: small_model(num_kv_heads=2),
    "1 layer": lambda: small_llama("llama", num_layers=1),
    "5 layers": lambda: small_llama("qwen2", num_layers=5),
    "2 layers in bf16": lambda: small_model().to(torch.bfloat16),
}

Prompts = tuple[list[int], str]  # the tokens of each, and a name in MODELS


def require_prompts(stage_class: Any, model: Model) -> None:
    """Raise Wrong about the smallest batch of prompts whose rooms do not hold what the model computed."""

    _judge_prompts(stage_class, model, [5, 9])
    require_all(
        PROMPTS,
        lambda lengths, name: _judge_prompts(stage_class, _model(name, str(model.device)), lengths),
        lambda lengths, name: f"prompts of {lengths} tokens, a model of {name}",
    )


def require_sizes(stage_class: Any, model: Model) -> None:
    """Raise Wrong unless the base class gets the sizes that the stage is made with."""
    sizes = {"num_blocks": 6, "block_size": 8, "max_num_seqs": 3}
    stage = stage_class(model, **sizes)
    made = {"num_blocks": stage.tables.num_blocks, "block_size": stage.block_size, "max_num_seqs": stage.max_num_seqs}
    for name, value in sizes.items():
        if made[name] != value:
            raise Wrong(f"a stage made with {name}={value} has {name}={made[name]}: pass all sizes to super().__init__")


def _judge_prompts(stage_class: Any, model: Model, lengths: list[int]) -> None:
    stage = stage_class(model, num_blocks=64)
    seqs = [Sequence([3 + i] * n, SamplingParams()) for i, n in enumerate(lengths)]
    for seq in seqs:
        stage.prefill(seq)
    for i, seq in enumerate(seqs):
        require_rooms(stage, seq, f"prompt {i} of {len(seqs)}")


def _draw_prompts(rng: Random) -> Prompts:
    lengths = [rng.choice((1, 16, 17, 63, 64, 65, rng.randint(2, 100))) for _ in range(rng.randint(1, 3))]
    return lengths, rng.choice(tuple(MODELS))


PROMPTS: list[Prompts] = [*(([5, 9], name) for name in MODELS), *draw(_draw_prompts)]


@cache
def _model(name: str, device: str) -> Model:
    return MODELS[name]().to(device)


@torch.inference_mode()
def require_rooms(stage: Any, seq: Sequence, which: str) -> None:
    """Raise Wrong unless the sequence's rooms hold K and V of its prompt, layer by layer."""
    attend, n = PromptAttention(), len(seq)
    device = stage.model.device
    stage.model(torch.tensor(seq.token_ids, device=device), torch.arange(n, device=device), attend)
    rooms, num_layers = stage.rooms.get(seq.seq_id), len(attend.keys_values)
    if rooms is None or len(rooms) != num_layers:
        kept = "nothing" if rooms is None else f"{len(rooms)} rooms"
        raise Wrong(f"{which}: self.rooms[seq.seq_id] holds {kept}, expected a list of {num_layers}, one per layer")
    for layer, (room, want) in enumerate(zip(rooms, attend.keys_values, strict=True)):
        pair = named_tensors(room.kv(), "k", "v")
        for (name, got), right in zip(pair.items(), want, strict=True):
            if message := explain_tensor(got, right.transpose(0, 1)):
                what = _mixed_up(got, attend.keys_values, layer) or message
                raise Wrong(f"{which} ({n} tokens), layer {layer}: {name}: {what}")


def _mixed_up(got: Tensor, keys_values: list[KV], layer: int) -> str:
    """Say what these wrong keys or values are, if they are known: keys instead of values, or those of another layer."""
    for other, pair in enumerate(keys_values):
        for name, tensor in zip(("keys", "values"), pair, strict=True):
            if explain_tensor(got, tensor.transpose(0, 1)) is None:
                return f"these are the {name}" if other == layer else f"these are layer {other}'s {name}"
    return ""


def require_free(stage_class: Any, model: Model) -> None:
    """Raise Wrong if free keeps something, drops the rooms of another sequence, or can be called twice."""
    stage = stage_class(model, num_blocks=8)
    first, second = (Sequence([3 + i] * n, SamplingParams()) for i, n in enumerate((5, 9)))
    stage.prefill(first)
    stage.prefill(second)
    stage.free(first)
    if stage.holds(first):
        raise Wrong("after free the base class still holds the sequence: super().free(seq) frees its blocks")
    if first.seq_id in stage.rooms:
        raise Wrong("after free the sequence's rooms are still in self.rooms: their memory is never freed")
    if second.seq_id not in stage.rooms:
        raise Wrong("free dropped the rooms of another sequence")
    try:
        stage.free(first)
    except ValueError:
        return
    except Exception as error:
        raise Wrong(f"freeing twice ends in {type(error).__name__}; let super().free(seq) refuse it first") from error
    raise Wrong("freeing twice is not refused: super().free(seq) does that, when it is called first")


def require_torn_prefills(stage_class: Any, model: Model) -> None:
    """Raise Wrong if a failed prefill leaves something, or the same sequence is not stored right afterwards.

    The prefill fails in layer 0, and then in layer 1.
    """
    for failing in (0, 1):
        stage = stage_class(model, num_blocks=8)
        seq, write_prompt = Sequence([5, 6, 7], SamplingParams()), stage.write_prompt
        stage.write_prompt = _failing(write_prompt, failing)
        try:
            stage.prefill(seq)
        except MemoryError:
            pass
        except Exception as error:
            raise Wrong(
                f"an error in layer {failing} of a prefill: the caller gets {type(error).__name__} instead of it, from "
                f"free. By then {'nothing' if failing == 0 else 'only layer 0'} is written"
            ) from error
        if stage.rooms.get(seq.seq_id):
            raise Wrong(f"an error in layer {failing} of a prefill leaves rooms in self.rooms")
        stage.write_prompt = write_prompt
        stage.prefill(seq)
        require_rooms(stage, seq, f"prefilled again after an error in layer {failing}")


def require_own_device(stage_class: Any) -> None:
    """Raise Wrong unless rooms are on the model's device: here torch's meta device, which takes no CPU tensor."""
    stage = stage_class(_model("2 layers, 4 KV heads", "meta"), num_blocks=8)
    seq = Sequence([5, 6, 7], SamplingParams())
    why = "make rooms with the device of the model, or of k"
    try:
        stage.prefill(seq)
    except Exception as error:
        raise Wrong(f"a model on device='meta': prefill ends in {type(error).__name__}: {error}; {why}") from error
    for layer, room in enumerate(stage.rooms[seq.seq_id]):
        for name, tensor in named_tensors(room.kv(), "k", "v").items():
            if tensor.device.type != "meta":
                raise Wrong(f"a model on device='meta': layer {layer}: {name} is on {tensor.device}; {why}")


def _failing(write_prompt: Callable[..., None], failing: int) -> Callable[..., None]:
    def write(seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        if layer == failing:
            raise MemoryError
        write_prompt(seq, layer, k, v)

    return write
