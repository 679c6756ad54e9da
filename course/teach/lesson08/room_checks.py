"""Checks of a learner's room, for 08.2: the tokens that it keeps, its dtype and device, and that it shares nothing."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.arguments import counted

from ..exercises.drawn import Comparison, Expected, draw
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import named_tensors, require_unchanged
from ..exercises.wrong import Wrong

H_KV, D = 2, 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
CHANGED = 99.0  # what the caller writes into its own tensors later

Appends = tuple[list[int], int, int, str]  # tokens of each append, H_kv, D, dtype


def make_room(
    room_class: Any, heads: int = H_KV, dim: int = D, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Any:
    return room_class(num_kv_heads=heads, head_dim=dim, dtype=dtype, device=torch.device(device))


def _draw_appends(rng: Random) -> Appends:
    prompt = rng.choice((1, 15, 16, 17, 31, 33, 64, 65, rng.randint(2, 40)))
    steps = [rng.choice((1, 1, 1, rng.randint(2, 20))) for _ in range(rng.randint(0, 4))]
    return [prompt, *steps], rng.randint(1, 3), rng.choice((2, 4, 5)), rng.choice(("fp32", "bf16", "fp64"))


APPENDS: list[Appends] = [
    ([5], H_KV, D, "fp32"),
    ([1, 1, 1], H_KV, D, "fp32"),
    ([16, 1], H_KV, D, "fp32"),
    ([3, 1, 20, 1], H_KV, D, "fp32"),
    ([70], H_KV, D, "fp32"),
    ([40], H_KV, D, "bf16"),
    ([1] * 40, 1, 2, "fp32"),
    ([600, 1], 1, 2, "fp32"),
    *draw(_draw_appends),
]


def _tokens(counts: list[int], heads: int, dim: int, dtype: str) -> list[tuple[Tensor, Tensor]]:
    """Make k and v of each append [N, H_kv, D], as a model does: cut from one tensor."""
    generator = torch.Generator().manual_seed(sum(counts))
    made = [torch.randn(n, 2 * heads, dim, generator=generator).to(DTYPES[dtype]) for n in counts]
    return [(tensor[:, :heads], tensor[:, heads:]) for tensor in made]


def _kept(*appends: Any, part: int) -> Tensor:
    """Return k (part 0) or v (part 1) of all appended tokens, [H_kv, T, D]."""
    return torch.cat([pair[part] for pair in _tokens(*appends)]).transpose(0, 1)


def _append_to(room_class: type, *appends: Any) -> dict[str, Tensor]:
    _, heads, dim, dtype = appends
    room = make_room(room_class, heads, dim, DTYPES[dtype])
    for given in _tokens(*appends):
        handed = [tensor.clone() for tensor in given]
        room.append(*handed)
        require_unchanged(given, handed, ("k", "v"))
        for tensor in handed:
            tensor.fill_(CHANGED)
    return named_tensors(room.kv(), "k", "v")


def _explain(got: object, want: Tensor) -> str | None:
    message = explain_tensor(got, want, rtol=0.0, atol=0.0)
    if message is None or not isinstance(got, Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return message
    if (got == CHANGED).any():
        return "it changed with the tensor that was appended, after the call: copy the tokens, do not keep the tensor"
    wrong = [t for t in range(want.size(1)) if not torch.equal(got[:, t], want[:, t])]
    if wrong == list(range(len(wrong))) and len(wrong) < want.size(1):
        lost = counted(len(wrong), "token", "is/are")
        return f"the first {lost} lost: when a room grows, copy its tokens to the new tensors"
    return message


_keys, _values = partial(_kept, part=0), partial(_kept, part=1)
TOKENS_KEPT = Comparison(
    APPENDS,
    {
        "k": Expected(_keys, {"these are the values, not the keys": _values}, _explain),
        "v": Expected(_values, {"these are the keys, not the values": _keys}, _explain),
    },
    lambda counts, heads, dim, dtype: f"appended {', '.join(map(str, counts))} tokens, H_kv={heads}, D={dim}, {dtype}",
    _append_to,
)


def require_rooms_apart(room_class: type) -> None:
    """Raise Wrong if tokens of one room turn up in another."""
    (mine, _), (others, _) = (_tokens([n], H_KV, D, "fp32")[0] for n in (3, 4))
    room, other = (make_room(room_class) for _ in range(2))
    room.append(mine, mine)
    other.append(others[:3], others[:3])
    for name, got in named_tensors(room.kv(), "k", "v").items():
        if torch.equal(got, others[:3].transpose(0, 1)):
            raise Wrong(f"{name} of a room holds the tokens of another room: do all rooms share their tensors?")


def require_device(room_class: type) -> None:
    """Raise Wrong unless all tensors of a room are on its device.

    Here that is torch's meta device, which has no memory, so a tensor on the CPU cannot be filled from it.
    """
    room = make_room(room_class, dtype=torch.bfloat16, device="meta")
    for n in (5, 20, 1):
        k = torch.empty(n, H_KV, D, dtype=torch.bfloat16, device="meta")
        try:
            room.append(k, k)
        except Exception as error:
            raise Wrong(
                f"a room made with device='meta' cannot take {n} tokens on that device ({type(error).__name__}: "
                f"{error}): make every tensor with device=device, also when the room grows"
            ) from error
    for name, tensor in named_tensors(room.kv(), "k", "v").items():
        if tensor.device.type != "meta":
            raise Wrong(f"{name}: a room made with device='meta' holds tensors on {tensor.device}")
