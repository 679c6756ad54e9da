"""Lesson 08: wrong rooms are told what is wrong, and right ones pass."""

from __future__ import annotations

import torch
from lesson08_solutions import OneTensor, Room
from wrong_answers import changed, right_answers, wrong_answers


def giving(turn):
    """turn: what kv makes of the right keys and values."""
    return changed(Room, kv=lambda room: turn(*Room.kv(room)))


def always(**fixed):
    """Made with these sizes, whatever it is asked for."""
    return changed(Room, __init__=lambda room, **asked: Room.__init__(room, **(asked | fixed)))


class Cats(Room):
    def append(self, k, v):
        self.keys = torch.cat([self.keys[:, : self.length], k.transpose(0, 1)], dim=1)
        self.values = torch.cat([self.values[:, : self.length], v.transpose(0, 1)], dim=1)
        self.length += k.size(0)


class SixteenMore(Room):
    def make_room(self, num_tokens):
        while self.keys.size(1) < num_tokens:
            capacity = self.keys.size(1) + 16
            self.keys, self.values = self.grown(self.keys, capacity), self.grown(self.values, capacity)


class KeepsTheTensors(Room):
    def append(self, k, v):
        if self.length:
            return super().append(k, v)
        self.keys, self.values, self.length = k.transpose(0, 1), v.transpose(0, 1), k.size(0)


class Huge(Room):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.make_room(4096)


class DoublesOnce(Room):
    def make_room(self, num_tokens):
        if self.keys.size(1) < num_tokens:
            capacity = 2 * self.keys.size(1)
            self.keys, self.values = self.grown(self.keys, capacity), self.grown(self.values, capacity)


class DoublesOrFits(Room):
    def make_room(self, num_tokens):
        if self.keys.size(1) < num_tokens:
            capacity = max(2 * self.keys.size(1), num_tokens)
            self.keys, self.values = self.grown(self.keys, capacity), self.grown(self.values, capacity)


class OneForAll(Room):
    """Class attributes: every room has the same tensors."""

    tensors = {}

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.tensors.setdefault("k", self.keys)
        self.keys = self.tensors["k"]


class Fp32WhenGrown(Room):
    def grown(self, old, capacity):
        new = torch.empty(old.size(0), capacity, old.size(2))
        new[:, : self.length] = old[:, : self.length]
        return new


class OnTheCpuWhenGrown(Room):
    def grown(self, old, capacity):
        new = torch.empty(old.size(0), capacity, old.size(2), dtype=old.dtype)
        if old.device.type == "cpu":
            new[:, : self.length] = old[:, : self.length]
        return new


class AtMost500(Room):
    def make_room(self, num_tokens):
        super().make_room(num_tokens)
        self.keys = self.keys[:, :512]


class DoublesTooLate(Room):
    """Full is not yet too full: 17 tokens in a room of 16."""

    def append(self, k, v):
        end = self.length + k.size(0)
        if end > self.keys.size(1) + 1:
            self.make_room(end)
        self.keys[:, self.length : end] = k.transpose(0, 1)[:, : self.keys.size(1) - self.length]
        self.values[:, self.length : end] = v.transpose(0, 1)[:, : self.values.size(1) - self.length]
        self.length = end


class Lazy:
    """Makes its tensors of what comes first, in that dtype and there."""

    def __init__(self, **sizes):
        self.keys = self.values = None
        self.length = 0

    def append(self, k, v):
        end = self.length + k.size(0)
        if self.keys is None or end > self.keys.size(1):
            capacity = max(16, 1 << (end - 1).bit_length())
            self.keys, self.values = self.larger(self.keys, k, capacity), self.larger(self.values, v, capacity)
        for mine, new in ((self.keys, k), (self.values, v)):
            mine.narrow(1, self.length, len(new)).copy_(new.transpose(0, 1))
        self.length = end

    def larger(self, old, new, capacity):
        made = new.new_zeros(new.size(1), capacity, new.size(2))
        if old is not None:
            made[:, : self.length].copy_(old[:, : self.length])
        return made

    def kv(self):
        return self.keys[:, : self.length], self.values[:, : self.length]


RIGHT_ROOMS = {"one tensor": OneTensor, "lazy": Lazy, "inherited": changed(Room)}


test_right_rooms = right_answers("08.2", RIGHT_ROOMS)


test_wrong_rooms = wrong_answers(
    "08.2",
    {
        "tokens first": (
            giving(lambda k, v: (k.transpose(0, 1), v.transpose(0, 1))),
            "k: dimensions in another order: values right after permute(1, 0, 2)",
        ),
        "cat": (Cats, "copy 250.5 bytes for each byte kept; the budget is 3"),
        "16 more": (SixteenMore, "Does the room double, or grow by the same amount each time?"),
        "old tokens lost": (
            changed(Room, grown=lambda room, old, capacity: old.new_zeros(old.size(0), capacity, old.size(2))),
            "appended 16, 1 tokens, H_kv=2, D=4, fp32: k: the first 16 tokens are lost",
        ),
        "keeps what it is given": (KeepsTheTensors, "it changed with the tensor that was appended, after the call"),
        "the whole room": (
            changed(Room, kv=lambda room: (room.keys, room.values)),
            "k: shape (2, 16, 2), expected (2, 2, 2)",
        ),
        "kv copies": (
            giving(lambda k, v: (k.clone(), v.clone())),
            "the values are right, but kv() copies: return slices",
        ),
        "always fp32": (always(dtype=torch.float32), "fp64: k: dtype float32, expected float64"),
        "huge from the start": (Huge, "the room holds 262,144 bytes, expected 1,024, K and V of 16 tokens"),
        "doubles once": (DoublesOnce, "RuntimeError"),
        "doubles once, or takes what it needs": (
            DoublesOrFits,
            "with 79 tokens, 79 of them just appended, the room holds 5,056 bytes, expected 8,192, K and V of 128",
        ),
        "keys alone": (giving(lambda k, v: k), "expected (k, v), got Tensor"),
        "an object": (3, "you give 3, expected the class Room"),
        "one for all": (OneForAll, "k of a room holds the tokens of another room: do all rooms share their tensors?"),
        "fp32 when grown": (Fp32WhenGrown, "bf16: k: dtype float32, expected bfloat16"),
        "on the CPU": (always(device="cpu"), "a room made with device='meta' cannot take 5 tokens on that device"),
        "on the CPU when grown": (
            OnTheCpuWhenGrown,
            "a room made with device='meta' cannot take 20 tokens on that device",
        ),
        "2 heads of 4": (
            always(num_kv_heads=2, head_dim=4),
            "H_kv=2, D=2, fp64: checking your answer raised RuntimeError",
        ),
        "512 tokens at most": (
            AtMost500,
            "appended 600, 1 tokens, H_kv=1, D=2, fp32: checking your answer raised RuntimeError",
        ),
        "doubles too late": (
            DoublesTooLate,
            "appended 16, 1 tokens, H_kv=2, D=4, fp32: k: shape (2, 16, 4), expected (2, 17, 4)",
        ),
    },
)
