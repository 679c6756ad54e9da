"""Checkers of lesson 08: a stage of one's own, from a tensor with room to spare to a contender on the ladder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roseinfer.contract import bytes_held, check_promises
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import PromptAttention, Stage

from ..measure.contract_report import ContractReport
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .stage_checks import equal_step, require_stage

H_KV, D = 2, 4
LENGTHS = [5, 9]
TOKENS = 500
MOST_COPIED = 3  # bytes copied for each byte kept, however the tokens come
SPARE = 2  # bytes held for each byte kept, of a cache that has grown token by token

KV = tuple[Tensor, Tensor]


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
    "spare. `append` copies k and v [N, H_kv, D] behind the tokens that are there; when they do not fit, the room "
    "doubles until they do. `kv()` returns the pair (k, v), each [H_kv, T, D], T being the tokens it holds, **without "
    "copying**. Budget: appending token by token copies at most 3 bytes for each byte kept.",
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
    for counts in ([5], [1, 1, 1], [3, 1, 20, 1], [70]):
        _check_room(answer, counts)
    _check_dtype(answer)
    room, token = _room(answer), 2 * H_KV * D * torch.float32.itemsize
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


def _room(room_class: Any, dtype: torch.dtype = torch.float32) -> Any:
    return room_class(num_kv_heads=H_KV, head_dim=D, dtype=dtype, device=torch.device("cpu"))


def _check_room(room_class: Any, counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    room, parts = _room(room_class), []
    for n in counts:
        k, v = torch.randn(2, n, H_KV, D, generator=generator)
        given = k.clone(), v.clone()
        room.append(*given)
        if not all(map(torch.equal, given, (k, v))):
            raise Wrong("append changed the k and v that it was given")
        for tensor in given:
            tensor.fill_(99.0)  # the caller goes on with its own tensors
        parts.append((k, v))
    case = f"appended {', '.join(map(str, counts))} tokens"
    want = [torch.cat(part).transpose(0, 1) for part in zip(*parts, strict=True)]
    got = _pair(room.kv(), f"{case}: kv()")
    for name, mine, other, right in zip("kv", got, reversed(want), want, strict=True):
        if message := explain_tensor(mine, right):
            raise Wrong(f"{case}: {name}: {_whose(mine, name, other) or _kept(mine, right) or message}")


def _check_dtype(room_class: Any) -> None:
    room = _room(room_class, torch.bfloat16)
    room.append(*torch.ones(2, 40, H_KV, D, dtype=torch.bfloat16))
    for name, tensor in zip("kv", _pair(room.kv(), "kv()"), strict=True):
        if tensor.dtype != torch.bfloat16:
            raise Wrong(f"{name}: a room made with dtype=torch.bfloat16 holds {tensor.dtype}")


def _whose(got: Tensor, name: str, other: Tensor) -> str:
    if explain_tensor(got, other) is not None:
        return ""
    return "these are the " + ("values, not the keys" if name == "k" else "keys, not the values")


def _kept(got: Tensor, want: Tensor) -> str:
    """Why some of the tokens are wrong."""
    if got.shape != want.shape:
        return ""
    if (got == 99.0).any():
        return "it changed with the tensor that was appended, after the call: copy the tokens, do not keep the tensor"
    wrong = [t for t in range(want.size(1)) if not torch.equal(got[:, t], want[:, t])]
    if wrong == list(range(len(wrong))) and len(wrong) < want.size(1):
        return f"the first {len(wrong)} tokens are lost: when a room grows, what is in it has to move"
    return ""


def _pair(got: Any, what: str) -> KV:
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(map(torch.is_tensor, got)):
        raise Wrong(f"{what} must return a pair of tensors (k, v), got {type(got).__name__}")
    return got[0], got[1]


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
    "0 on, and keeps the prompt's K and V in `self.rooms[seq.seq_id]`, a list of one `Room` a layer. `free` gives back "
    "the base class's blocks **and** your rooms. An error in the middle of a prefill leaves nothing behind: "
    "`Stage.prefill` calls `free` then, whatever you have written by that time.",
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
    stage = half(model, num_blocks=8)
    seqs = [Sequence([3 + i] * n, SamplingParams()) for i, n in enumerate(LENGTHS)]
    for seq in seqs:
        stage.prefill(seq)
    for i, seq in enumerate(seqs):
        _check_rooms(stage, seq, f"prompt {i} of {len(seqs)}")
    _check_free(stage, *seqs)
    _check_torn_prefill(half, model)


def _missing(*_: Any) -> None:
    raise Wrong("build and append are not called in a prefill")


@torch.inference_mode()
def _check_rooms(stage: Any, seq: Sequence, which: str) -> None:
    attend, n = PromptAttention(), len(seq)
    device = stage.model.device
    stage.model(torch.tensor(seq.token_ids, device=device), torch.arange(n, device=device), attend)
    rooms, num_layers = stage.rooms.get(seq.seq_id), len(attend.keys_values)
    if rooms is None or len(rooms) != num_layers:
        kept = "nothing" if rooms is None else f"{len(rooms)} rooms"
        raise Wrong(f"{which}: self.rooms[seq.seq_id] holds {kept}, expected a list of {num_layers}, one a layer")
    for layer, (room, want) in enumerate(zip(rooms, attend.keys_values, strict=True)):
        for name, got, right in zip("kv", _pair(room.kv(), f"layer {layer}: kv()"), want, strict=True):
            if message := explain_tensor(got, right.transpose(0, 1)):
                what = _mixed_up(got, attend.keys_values, layer) or message
                raise Wrong(f"{which} ({n} tokens), layer {layer}: {name}: {what}")


def _mixed_up(got: Tensor, keys_values: list[KV], layer: int) -> str:
    """Whose keys or values these are, when they are somebody else's."""
    for other, pair in enumerate(keys_values):
        for name, tensor in zip(("keys", "values"), pair, strict=True):
            if explain_tensor(got, tensor.transpose(0, 1)) is None:
                return f"these are the {name}" if other == layer else f"these are layer {other}'s {name}"
    return ""


def _check_free(stage: Any, first: Sequence, second: Sequence) -> None:
    stage.free(first)
    if stage.holds(first):
        raise Wrong("behind free the base class still holds the sequence: its blocks come back by super().free(seq)")
    if first.seq_id in stage.rooms:
        raise Wrong("behind free the sequence's rooms are still in self.rooms: its memory never comes back")
    if second.seq_id not in stage.rooms:
        raise Wrong("free threw away the rooms of another sequence")
    try:
        stage.free(first)
    except ValueError:
        return
    except Exception as error:
        raise Wrong(f"freeing twice ends in {type(error).__name__}; let super().free(seq) refuse it first") from error
    raise Wrong("freeing twice is not refused: super().free(seq) does that, when it is asked first")


def _check_torn_prefill(stage_class: Any, model: Model) -> None:
    """A prefill that fails in layer 0, and one that fails later; then the same sequence once more."""
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
            raise Wrong(f"an error in layer {failing} of a prefill leaves rooms behind in self.rooms")
        stage.write_prompt = write_prompt
        stage.prefill(seq)
        _check_rooms(stage, seq, f"prefilled once more after an error in layer {failing}")


def _failing(write_prompt: Callable[..., None], failing: int) -> Callable[..., None]:
    def write(seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        if layer == failing:
            raise MemoryError
        write_prompt(seq, layer, k, v)

    return write


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
    _require_contract(answer)


def _require_contract(stage_class: type[Stage]) -> None:
    report = ContractReport(stage_class, tuple(check_promises(stage_class, quick=True)))
    if report.broken:
        first = report.broken[0]
        raise Wrong(f"the promise **{first.promise.title}** ({first.promise.why}) is broken: {report.message(first)}")


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
    _require_contract(answer)
    c, num_seqs, num_tokens = model.config, 4, 100
    new = num_seqs * 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    step = equal_step(answer, model, num_seqs, num_tokens)
    copied = min(bytes_copied(step).copied for _ in range(3))  # one of them may grow
    if copied > 2 * new:
        times = copied / (new * num_tokens)
        raise Wrong(
            f"the contract is kept, but a step of {num_seqs} sequences of {num_tokens} tokens copies {copied:,} bytes "
            f"({times:.1f} times all that is cached); the budget is {2 * new:,}. Does attention get a copy?"
        )
