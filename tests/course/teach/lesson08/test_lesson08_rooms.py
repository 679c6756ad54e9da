"""Lesson 08: wrong rooms are told what is wrong, and right ones pass."""

from __future__ import annotations

from functools import partial

import torch
from lesson08_solutions import OneTensor, Room
from wrong_answers import changed, right_answers, wrong_answers

from course.teach.exercises.solutions import solution

room_with = partial(solution, "08.2", torch=torch)
KEYS, VALUES = "self.keys[:, : self.length]", "self.values[:, : self.length]"
RETURNED, GROWN = f"return {KEYS}, {VALUES}", "old.new_empty(old.size(0), capacity, old.size(2))"


class OneForAll(Room):
    """Class attributes: every room has the same tensors."""

    tensors = {}

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.tensors.setdefault("k", self.keys)
        self.keys = self.tensors["k"]


class ThroughNumPy(Room):
    """Moves to new tensors in a way that PyTorch does not see."""

    def make_room(self, num_tokens):
        super().make_room(num_tokens)
        self.keys = torch.from_numpy(self.keys.float().numpy().copy()).to(self.keys.dtype)


class WrittenAgain(Room):
    def append(self, k, v):
        super().append(k, v)
        self.keys.copy_(self.keys.clone())


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


test_right_rooms = right_answers("08.2", {"one tensor": OneTensor, "lazy": Lazy})


test_wrong_rooms = wrong_answers(
    "08.2",
    {
        "copied to tensors of the same size": (
            room_with({"if num_tokens > capacity:": "if True:"}),
            "an append that fits into the room copies its tokens to new tensors",
        ),
        "kv copies": (
            room_with({RETURNED: f"return {KEYS}.clone(), {VALUES}.clone()"}),
            "kv() copies: return slices",
        ),
        "kv copies while few": (
            changed(Room, kv=lambda room: [x.clone() if room.length < 100 else x for x in Room.kv(room)]),
            "kv() copies: return slices",
        ),
        "copied through NumPy": (ThroughNumPy, "an append that fits into the room copies its tokens to new tensors"),
        "written over itself": (WrittenAgain, "bytes for each byte kept; the budget is 3"),
        "an object": (3, "you give 3, expected the class Room"),
        "one for all": (OneForAll, "got 99, expected"),
        "on the CPU": (room_with({"device=device": "device='cpu'"}), "device='meta': a room takes 5 tokens, and"),
        "on the CPU when grown": (
            room_with({GROWN: f"torch.empty_like({GROWN}, device='cpu')"}),
            "device='meta': a room takes 20 tokens, and",
        ),
        "512 tokens at most": (
            room_with({"self.make_room(end)": "self.make_room(min(end, 512))"}),
            "appended 600, 1 tokens, H_kv=1, D=2, fp32: checking your answer raised RuntimeError",
        ),
    },
)
