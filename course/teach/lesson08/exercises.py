"""Checkers of lesson 08: a draft to repair, and a stage of your own, from one growing tensor to a contender."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch

from course.contract import bytes_held
from course.contract.small_models import small_model
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import PromptAttention, Stage

from ..exercises.as_solved import as_solved_by_name
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.solutions import solution
from ..exercises.stage_checks import cached_in, require_sizes, require_stage, require_tokens, step_of
from ..exercises.tensor_checks import explain_exactly, named_tensors, require_unchanged
from ..exercises.wrong import Wrong

# 08.2

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
ELSEWHERE = 99.0  # what another room keeps, and what the caller writes into its own tensors later
MOST_COPIED = 3  # bytes copied for each byte kept, however the tokens come

Appends = tuple[list[int], int, int, str]  # tokens of each append, H_kv, D, dtype


def _draw_appends(rng: Random) -> Appends:
    prompt = rng.choice((1, 15, 16, 17, 31, 33, 64, 65, rng.randint(2, 40)))
    steps = [rng.choice((1, 1, 1, rng.randint(2, 20))) for _ in range(rng.randint(0, 4))]
    return [prompt, *steps], rng.randint(1, 3), rng.choice((2, 4, 5)), rng.choice(tuple(DTYPES))


APPENDS: list[Appends] = [
    ([1] * 100, 1, 2, "fp32"),
    ([600, 1], 1, 2, "fp32"),
    *draw(_draw_appends),
]


def _made(room_class: Any, heads: int, dim: int, dtype: torch.dtype, device: str = "cpu") -> Any:
    return room_class(num_kv_heads=heads, head_dim=dim, dtype=dtype, device=torch.device(device))


def _append_to(room_class: Any, counts: list[int], heads: int, dim: int, dtype: str) -> dict[str, Any]:
    """Append k and v [N, H_kv, D], cut from one tensor as a model does it; and other tokens to another room."""
    generator = torch.Generator().manual_seed(sum(counts))
    room, other = (_made(room_class, heads, dim, DTYPES[dtype]) for _ in range(2))
    held, places = 0, None
    for n in counts:
        both = torch.randn(n, 2 * heads, dim, generator=generator).to(DTYPES[dtype])
        before, handed = ([made[:, :heads], made[:, heads:]] for made in (both.clone(), both))
        room.append(*handed)
        require_unchanged(before, handed, ("k", "v"))
        both.fill_(ELSEWHERE)
        other.append(*handed)
        # Where tokens lie, not how they came there: PyTorch sees no copy that NumPy makes.
        lay, places = places, _places(room)
        was, held = held, bytes_held(room)
        if lay not in (None, places) and held == was:
            raise Wrong("an append that fits into the room copies its tokens to new tensors: write behind them instead")
    return {**named_tensors(room.kv(), "k", "v"), "memory": bytes_held(room)}


def _places(room: Any) -> list[int]:
    """Return the addresses of the tokens that kv gives. Raises Wrong if it gives copies."""
    given, again = room.kv(), room.kv()  # both are held: else one copy could lie where the other lay
    places, others = ([tensor.data_ptr() for tensor in named_tensors(kv, "k", "v").values()] for kv in (given, again))
    if places != others:
        raise Wrong("kv() copies: return slices of the tensors, self.keys[:, : self.length]")
    return places


def _explain_memory(got: int, want: int) -> str | None:
    return None if got == want else f"the room holds {got:,} bytes, expected {want:,}"


SLICES = "self.keys[:, : self.length], self.values[:, : self.length]"
KEPT = """        if not self.length:
            self.keys, self.values, self.length = k.transpose(0, 1), v.transpose(0, 1), k.size(0)
            return
"""
KEPT_MISTAKES = {
    "it changed with the tensor that was appended, after the call: copy the tokens, do not keep the tensor": {
        "        end = self.length + k.size(0)\n": KEPT + "        end = self.length + k.size(0)\n"
    },
    "when a room grows, copy its tokens to the new tensors": {
        "old.new_empty": "old.new_zeros",
        "new[:, : self.length] = old[:, : self.length]": "pass",
    },
    "kv gives the tokens alone, not the whole room": {
        SLICES: "self.keys, self.values",
        "torch.empty": "torch.zeros",
        "new_empty": "new_zeros",
    },
}
MEMORY_MISTAKES = {
    "it doubles, and does not grow by the same amount each time": {"capacity *= 2": "capacity += 16"},
    "it doubles until the tokens fit, also when many come at once": {
        "while capacity < num_tokens:\n                capacity *= 2": "capacity = max(2 * capacity, num_tokens)"
    },
}
SOLVED = partial(as_solved_by_name, "08.2", call=_append_to, torch=torch)
VALUES = {SLICES: "self.values[:, : self.length], self.keys[:, : self.length]"}
KEEPS = {
    "k": {"these are the values, not the keys": VALUES, **KEPT_MISTAKES},
    "v": {"these are the keys, not the values": VALUES, **KEPT_MISTAKES},
}
ROOMS = Comparison(
    APPENDS,
    SOLVED(KEEPS, explain_exactly) | SOLVED({"memory": MEMORY_MISTAKES}, _explain_memory),
    lambda counts, heads, dim, dtype: f"appended {', '.join(map(str, counts))} tokens, H_kv={heads}, D={dim}, {dtype}",
    call=_append_to,
)


@exercise("08.2", ROOMS)
def room_that_doubles(answer: type) -> None:
    if not isinstance(answer, type):
        raise Wrong(f"you give {answer!r}, expected the class Room")
    ROOMS(answer)
    room, (k, v) = _made(answer, 2, 4, torch.float32), torch.ones(2, 1, 2, 4)
    copied = bytes_copied(lambda: [room.append(k, v) for _ in range(500)]).copied / 500 / (k.nbytes + v.nbytes)
    if copied > MOST_COPIED:
        raise Wrong(
            f"the values are right, but 500 tokens, one by one, copy {copied:.1f} bytes for each byte kept; the budget "
            f"is {MOST_COPIED}"
        )
    room = _made(answer, 2, 4, torch.bfloat16, device="meta")
    for n in (5, 20, 1):
        tokens = torch.empty(2, n, 2, 4, dtype=torch.bfloat16, device="meta")
        _on_meta(f"a room takes {n} tokens", partial(room.append, *tokens))
    _on_meta("kv", room.kv)


def _on_meta(what: str, call: Callable[[], Any]) -> None:
    """Raise Wrong unless all is on the meta device. It has no memory, so no tensor on the CPU is filled from it."""
    try:
        tensors = call() or ()
    except Exception as error:
        raise Wrong(
            f"device='meta': {what}, and {type(error).__name__}: {error}. Make every tensor with device=device, also "
            "when a room grows"
        ) from error
    if any(tensor.device.type != "meta" for tensor in tensors):
        raise Wrong(f"device='meta': {what} gives a tensor on another device")


# 08.3

# Of prefills and frees; the others try a decode step.
HALF = (
    "One sequence",
    "Every block comes back",
    "Block edges",
    "Odd shapes",
    "Half precision",
    "Freeing twice is refused",
    "Prefilled again",
    "Neighbours come and go",
    "Errors and Ctrl-C free everything",
    "Memory comes back",
)


@exercise("08.3")
def prompt_in_sequence_out(answer: type[Stage], model: Model) -> None:
    """Check the rooms of two prompts; then the contract, with the decode step of the solution of 08.4."""
    require_stage(answer)
    mine = solution("08.4", torch=torch, F=torch.nn.functional, Contiguous=answer)
    members = {"build": mine.build, "append": mine.append, "__module__": answer.__module__}
    whole: Any = type(answer.__name__, (answer,), members)
    stage = whole(model, num_blocks=6, block_size=8, max_num_seqs=3)
    require_sizes(stage, num_free_blocks=6, block_size=8, max_num_seqs=3)
    seqs = [Sequence([3 + i] * n, SamplingParams()) for i, n in enumerate((5, 9))]
    for seq in seqs:
        stage.prefill(seq)
    for i, seq in enumerate(seqs):
        _require_rooms(stage, seq, f"prompt {i} of {len(seqs)}")
    stage.free(seqs[0])
    if seqs[0].seq_id in stage.rooms:
        raise Wrong("after free the sequence's rooms are still in self.rooms: their memory is never freed")
    require_contract(whole, HALF)
    stage = whole(small_model().to("meta"), num_blocks=8)
    seq = Sequence([5, 6, 7], SamplingParams())
    _on_meta("a model there has a prompt", lambda: [stage.prefill(seq)])
    _on_meta("a room", lambda: [tensor for room in stage.rooms[seq.seq_id] for tensor in room.kv()])


@torch.inference_mode()
def _require_rooms(stage: Any, seq: Sequence, which: str) -> None:
    """Raise Wrong unless the sequence's rooms hold K and V of its prompt, layer by layer."""
    attend, device = PromptAttention(), stage.model.device
    stage.model(torch.tensor(seq.token_ids, device=device), torch.arange(len(seq), device=device), attend)
    rooms, right = stage.rooms.get(seq.seq_id, ()), [[kv.transpose(0, 1) for kv in pair] for pair in attend.keys_values]
    if len(rooms) != len(right):
        raise Wrong(f"{which}: self.rooms[seq.seq_id] has {len(rooms)} rooms, expected {len(right)}, one per layer")
    known = {
        f"layer {i}'s {name}": kv
        for i, pair in enumerate(right)
        for name, kv in zip(("keys", "values"), pair, strict=True)
    }
    for layer, room in enumerate(rooms):
        for (name, got), want in zip(named_tensors(room.kv(), "keys", "values").items(), right[layer], strict=True):
            if message := explain_tensor(got, want):
                what = [f"these are {other}" for other, kv in known.items() if explain_tensor(got, kv) is None]
                raise Wrong(f"{which}: layer {layer}'s {name}: {(what or [message])[0]}")


# 08.1, 08.4 and 08.5


def _require_whole(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    require_contract(answer)


register("08.1", _require_whole)
register("08.4", _require_whole)

STEPS = ([20], [100] * 4, [170] * 2, [40] * 9, [30, 3, 70] * 6)  # prompts


@exercise("08.5")
def contender(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    for lengths in STEPS:
        _require_no_copies(answer, model, lengths)
    require_contract(answer)


def _require_no_copies(stage_class: type[Stage], model: Model, lengths: list[int]) -> None:
    c = model.config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    step, budget = step_of(stage_class, model, lengths), 2 * token * len(lengths)  # twice K and V of the new tokens
    copied = min(bytes_copied(step).copied for _ in range(3))  # one of them may grow
    if copied > budget:
        raise Wrong(
            f"the tokens are right, but a step with {cached_in(lengths)} tokens cached copies {copied:,} bytes "
            f"({copied / (token * sum(lengths)):.1f} times all that is cached); the budget is {budget:,}. Is "
            "attention given a copy?"
        )
