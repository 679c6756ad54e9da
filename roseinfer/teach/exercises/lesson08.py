"""Checkers of lesson 08: a stage of one's own, from a tensor with room to spare to a contender on the ladder."""

from __future__ import annotations

from typing import Any

import torch

from roseinfer.contract import bytes_held
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied
from roseinfer.stage import Stage

from .contract_check import require_contract
from .exercise import Wrong, exercise
from .half_stage_checks import require_free, require_own_device, require_prompts, require_torn_prefills
from .room_checks import H_KV, D, make_room, require_device, require_rooms_apart, require_tokens_kept
from .stage_checks import equal_step, require_stage, require_tokens

TOKENS = 500
MOST_COPIED = 3  # bytes copied for each byte kept, however the tokens come
SPARE = 2  # bytes held for each byte kept, of a cache that has grown token by token


@exercise(
    "08.1",
    title="Room that doubles",
    minutes=10,
    difficulty=2,
    importance=5,
    stub="""
class Room:
    '''K and V of one sequence in one layer, with room to spare.'''

    def __init__(self, *, num_kv_heads, head_dim, dtype, device):
        ...

    def append(self, k, v):
        ...

    def kv(self):
        ...
""",
    task="`Room` holds K and V of **one sequence in one layer**, each as one tensor [H_kv, capacity, D] with room to "
    "spare, of that dtype and on that device. `append` copies k and v [N, H_kv, D] behind the tokens that are there; "
    "when they do not fit, the room doubles until they do. `kv()` returns the pair (k, v), each [H_kv, T, D], T being "
    "the tokens it holds, **without copying**. Budget: appending token by token copies at most 3 bytes for each byte "
    "kept.",
    hints=(
        "Keep three things: two tensors made with torch.empty((num_kv_heads, 16, head_dim), dtype=dtype, "
        "device=device), and self.length = 0.",
        "keys[:, start:end] = k.transpose(0, 1) turns [N, H_kv, D] into [H_kv, N, D] on the way in.",
        "To grow: while capacity < needed: capacity *= 2; make larger tensors, copy the self.length tokens that are "
        "there, and give the new ones the old names. kv() is two slices.",
    ),
)
def room_that_doubles(answer: type) -> None:
    if not isinstance(answer, type):
        raise Wrong(f"expected the class Room, got {answer!r}")
    require_rooms_apart(answer)
    require_tokens_kept(answer)
    require_device(answer)
    room, token = make_room(answer), 2 * H_KV * D * torch.float32.itemsize
    k, v = torch.randn(2, 1, H_KV, D, generator=torch.Generator().manual_seed(0))
    copied = bytes_copied(lambda: [room.append(k, v) for _ in range(TOKENS)]).copied
    if bytes_copied(room.kv).copied:
        raise Wrong("the values are right, but kv() copies: return slices of the tensors, self.keys[:, : self.length]")
    if copied > MOST_COPIED * TOKENS * token:
        raise Wrong(
            f"the values are right, but {TOKENS} tokens, one by one, copy {copied / TOKENS / token:.1f} bytes for each "
            f"byte kept; the budget is {MOST_COPIED}. Does the room double, or grow by the same amount each time?"
        )
    held = bytes_held(room)
    if held > SPARE * TOKENS * token:
        raise Wrong(
            f"the values are right, but the room for {TOKENS} tokens holds {held:,} bytes; twice what is kept, "
            f"{SPARE * TOKENS * token:,}, is the most. Begin small (16 tokens), and double only when it is full"
        )


@exercise(
    "08.2",
    title="A prompt comes in, a sequence goes out",
    minutes=15,
    difficulty=3,
    importance=4,
    stub="""
class Contiguous(Stage):
    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.rooms = {}

    def write_prompt(self, seq, layer, k, v):
        ...

    def free(self, seq):
        ...
""",
    task="The first half of a stage that subclasses `Stage` itself: `write_prompt` is called once a layer, from layer "
    "0 on, and keeps the prompt's K and V in `self.rooms[seq.seq_id]`, a list of one `Room` a layer, in the model's "
    "dtype and on its device. `free` gives back the base class's blocks **and** your rooms. An error in the middle of "
    "a prefill leaves nothing behind: `Stage.prefill` calls `free` then, whatever you have written by that time.",
    hints=(
        "write_prompt: self.rooms.setdefault(seq.seq_id, []) is the sequence's list; append a new Room to it, and the "
        "prompt to the room. Its sizes are in self.config, dtype and device in self.model.",
        "free: super().free(seq) first. It refuses a sequence that is not held, before you have thrown anything away.",
        "After an error in layer 0 there is no list yet: self.rooms.pop(seq.seq_id, None) does not mind.",
    ),
)
def prompt_in_sequence_out(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    half = type(answer.__name__, (answer,), {"build": _missing, "append": _missing})
    require_prompts(half, model)
    require_free(half, model)
    require_torn_prefills(half, model)
    require_own_device(half)


def _missing(*_: Any) -> None:
    raise Wrong("build and append are not called in a prefill")


@exercise(
    "08.3",
    title="The decode step",
    minutes=25,
    difficulty=3,
    importance=5,
    stub="""
class MyStep:
    def __init__(self, rooms):
        ...

    def __call__(self, layer, q, k, v):
        ...


class Mine(Contiguous):
    def build(self, seqs):
        ...

    def append(self, seqs, step):
        ...
""",
    task="The other half. `build` returns what the model calls in each layer, `step(layer, q, k, v)`, which attends "
    "with each sequence's own room and itself, and keeps k and v; `append` puts them into the rooms. Make it right "
    "before you make it fast: the check runs the **contract**, without its slow promises.",
    hints=(
        "A class with __init__(self, rooms) and __call__(self, layer, q, k, v), as `DraftStep` has. rooms[i][layer] is "
        "the room of sequence i.",
        "append: for layer, (k, v) in enumerate(step.new), for each sequence i: its room appends k[i : i + 1] and "
        "v[i : i + 1], which are [1, H_kv, D].",
        "`teach.contract(Mine, quick=True)` says more than this check does. Mend the first broken promise and ask "
        "again: the others often follow.",
    ),
)
def decode_step_of_your_own(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    require_contract(answer)


@exercise(
    "08.4",
    title="A contender",
    minutes=30,
    difficulty=4,
    importance=4,
    stub="contender = None",
    task="Enter a stage of your own: the one above made leaner, or another idea altogether. It keeps the contract, "
    "and a decode step in which no room grows copies **no token that is cached already**. Budget: twice the bytes of "
    "the new tokens' K and V, once for the rooms, and as much again to put rows together. Then it is raced.",
    hints=(
        "What copies the cache in your step is the cat in front of attention. If the new token were in its room "
        "already, the room itself would be what attention reads.",
        "build may make room for one more token in every room. Then step(layer, q, k, v) writes k[i] and v[i] behind "
        "the tokens of room i and attends with a slice that has them in it; append only counts them.",
        "Until append the token does not count: a step that fails in the middle is repeated, and writes it again.",
    ),
)
def contender(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    require_tokens(answer, model)
    for num_seqs, num_tokens in STEPS:
        _require_no_copies(answer, model, num_seqs, num_tokens)
    require_contract(answer)


STEPS = ((1, 20), (4, 100), (2, 170), (9, 40))  # sequences, and tokens of each


def _require_no_copies(stage_class: type[Stage], model: Model, num_seqs: int, num_tokens: int) -> None:
    c = model.config
    new = num_seqs * 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    step = equal_step(stage_class, model, num_seqs, num_tokens)
    copied = min(bytes_copied(step).copied for _ in range(3))  # one of them may grow
    if copied > 2 * new:
        raise Wrong(
            f"the tokens are right, but a step with {num_seqs} × {num_tokens} tokens cached copies {copied:,} bytes "
            f"({copied / (new * num_tokens):.1f} times all that is cached); the budget is {2 * new:,}. Does attention "
            "get a copy?"
        )
