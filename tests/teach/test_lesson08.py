"""Lesson 08: wrong rooms and wrong halves of a stage are told what is wrong, and right ones pass."""

from __future__ import annotations

from collections import defaultdict

import torch
from lesson08_solutions import Contiguous, Room
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers

from roseinfer.stage import Stage

# 08.1


class TokensFirst(Room):
    def kv(self):
        return tuple(x.transpose(0, 1) for x in super().kv())


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


class KeysTwice(Room):
    def append(self, k, v):
        super().append(k, k)


class StartsAfresh(Room):
    def grown(self, old, capacity):
        return old.new_zeros(old.size(0), capacity, old.size(2))


class KeepsTheTensors(Room):
    def append(self, k, v):
        if self.length:
            return super().append(k, v)
        self.keys, self.values, self.length = k.transpose(0, 1), v.transpose(0, 1), k.size(0)


class WholeRoom(Room):
    def kv(self):
        return self.keys, self.values


class Copies(Room):
    def kv(self):
        return tuple(x.clone() for x in super().kv())


class AlwaysFp32(Room):
    def __init__(self, *, dtype, **sizes):
        super().__init__(dtype=torch.float32, **sizes)


class Huge(Room):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.make_room(4096)


class DoublesOnce(Room):
    def make_room(self, num_tokens):
        if self.keys.size(1) < num_tokens:
            capacity = 2 * self.keys.size(1)
            self.keys, self.values = self.grown(self.keys, capacity), self.grown(self.values, capacity)


class KeysAlone(Room):
    def kv(self):
        return super().kv()[0]


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


class OnTheCpu(Room):
    def __init__(self, *, device, **sizes):
        super().__init__(device="cpu", **sizes)


class OnTheCpuWhenGrown(Room):
    def grown(self, old, capacity):
        new = torch.empty(old.size(0), capacity, old.size(2), dtype=old.dtype)
        if old.device.type == "cpu":
            new[:, : self.length] = old[:, : self.length]
        return new


class Sizes2And4(Room):
    def __init__(self, *, num_kv_heads, head_dim, **rest):
        super().__init__(num_kv_heads=2, head_dim=4, **rest)


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


class OneTensor:
    """K and V in one tensor, tokens first, made on the first append."""

    def __init__(self, num_kv_heads, head_dim, dtype, device):
        self.kv_tokens = torch.empty(1, 2, num_kv_heads, head_dim, dtype=dtype, device=device)
        self.count = 0

    def append(self, k, v):
        needed, capacity = self.count + len(k), len(self.kv_tokens)
        while capacity < needed:
            capacity *= 2
        if capacity > len(self.kv_tokens):
            grown = self.kv_tokens.new_empty(capacity, *self.kv_tokens.shape[1:])
            grown[: self.count] = self.kv_tokens[: self.count]
            self.kv_tokens = grown
        self.kv_tokens[self.count : needed, 0] = k
        self.kv_tokens[self.count : needed, 1] = v
        self.count = needed

    def kv(self):
        return list(self.kv_tokens[: self.count].permute(1, 2, 0, 3))


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


class FromMyRoom(Room):
    """Everything is inherited from the learner's own class."""


RIGHT_ROOMS = {"the solution": Room, "one tensor": OneTensor, "lazy": Lazy, "inherited": FromMyRoom}


@right_answers("08.1", RIGHT_ROOMS)
def test_right_rooms(answer):
    assert_accepted("08.1", answer)


@wrong_answers(
    "08.1",
    {
        "tokens first": (TokensFirst, "k: dimensions in another order: values right after permute(1, 0, 2)"),
        "cat": (Cats, "copy 250.5 bytes for each byte kept; the budget is 3"),
        "16 more": (SixteenMore, "Does the room double, or grow by the same amount each time?"),
        "keys twice": (
            KeysTwice,
            "v: 8 of 8 values differ, first at (0, 0, 0): got 0.392297, expected 1.04446: these are the keys",
        ),
        "old tokens lost": (StartsAfresh, "appended 16, 1 tokens, H_kv=2, D=4, fp32: k: the first 16 tokens are lost"),
        "keeps what it is given": (KeepsTheTensors, "it changed with the tensor that was appended, after the call"),
        "the whole room": (WholeRoom, "k: shape (2, 16, 2), expected (2, 2, 2)"),
        "kv copies": (Copies, "the values are right, but kv() copies: return slices"),
        "always fp32": (AlwaysFp32, "fp64: k: dtype float32, expected float64"),
        "huge from the start": (Huge, "the room for 500 tokens holds 262,144 bytes; twice what is kept"),
        "doubles once": (DoublesOnce, "RuntimeError"),
        "keys alone": (KeysAlone, "expected (k, v), got Tensor"),
        "an object": (3, "expected the class Room, got 3"),
        "one for all": (OneForAll, "k of a room holds the tokens of another room: have all rooms the same tensors?"),
        "fp32 when grown": (Fp32WhenGrown, "bf16: k: dtype float32, expected bfloat16"),
        "on the CPU": (OnTheCpu, "a room made with device='meta' cannot take 5 tokens that lie there"),
        "on the CPU when grown": (
            OnTheCpuWhenGrown,
            "a room made with device='meta' cannot take 20 tokens that lie there",
        ),
        "2 heads of 4": (Sizes2And4, "H_kv=2, D=2, fp64: checking your answer raised RuntimeError"),
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
def test_wrong_rooms(answer, message):
    assert_refused("08.1", answer, message)


# 08.2


class OneRoom(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k, v)
        self.rooms[seq.seq_id] = [self.rooms[seq.seq_id][0]] * (layer + 1)


class LastLayer(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        self.rooms.pop(seq.seq_id, None)
        super().write_prompt(seq, layer, k, v)


class SwapsPrompt(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, v, k)


class KeepsNothing(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        self.length = len(seq)


class KeepsBlocks(Contiguous):
    def free(self, seq):
        self.rooms.pop(seq.seq_id, None)


class KeepsRooms(Contiguous):
    def free(self, seq):
        Stage.free(self, seq)


class RoomsFirst(Contiguous):
    def free(self, seq):
        del self.rooms[seq.seq_id]
        Stage.free(self, seq)


class Deletes(Contiguous):
    def free(self, seq):
        Stage.free(self, seq)
        del self.rooms[seq.seq_id]


class ClearsAll(Contiguous):
    def free(self, seq):
        Stage.free(self, seq)
        self.rooms.clear()


class FreesTwice(Contiguous):
    def free(self, seq):
        if self.holds(seq):
            super().free(seq)


class Fp32Rooms(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k.float(), v.float())


class CpuRooms(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        c = self.config
        room = Room(num_kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=k.dtype, device="cpu")
        room.append(k, v)
        self.rooms.setdefault(seq.seq_id, []).append(room)


class TwoLayers(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k, v)
        del self.rooms[seq.seq_id][2:]


class QueryHeads(Contiguous):
    """Room for every query head, each with a copy of its KV head's keys."""

    def write_prompt(self, seq, layer, k, v):
        group = self.config.num_heads // self.config.num_kv_heads
        super().write_prompt(seq, layer, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


class SixtyFour(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k[:64], v[:64])


class AllAtOnce(Contiguous):
    """All rooms are made in layer 0."""

    def write_prompt(self, seq, layer, k, v):
        c = self.config
        sizes = {"num_kv_heads": c.num_kv_heads, "head_dim": c.head_dim}
        if layer == 0:
            self.rooms[seq.seq_id] = [
                Room(**sizes, dtype=self.model.dtype, device=self.model.device) for _ in range(c.num_layers)
            ]
        self.rooms[seq.seq_id][layer].append(k, v)


class WithDefaults(Stage):
    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.rooms = defaultdict(list)

    def write_prompt(self, seq, layer, k, v):
        room = OneTensor(k.size(1), k.size(2), k.dtype, k.device)
        room.append(k, v)
        self.rooms[seq.seq_id] += (room,)

    def free(self, seq):
        try:
            super().free(seq)
        finally:
            if seq.seq_id in self.rooms:
                del self.rooms[seq.seq_id]

    build = append = None


class FromMyHalf(Contiguous):
    """Everything is inherited from the learner's own class."""


RIGHT_HALVES = {
    "the solution": Contiguous,
    "all at once": AllAtOnce,
    "defaultdict": WithDefaults,
    "inherited": FromMyHalf,
}


@right_answers("08.2", RIGHT_HALVES)
def test_right_halves(answer, small):
    assert_accepted("08.2", answer, model=small)


@wrong_answers(
    "08.2",
    {
        "one room for all layers": (OneRoom, "prompt 0 of 2 (5 tokens), layer 1: k: these are layer 0's keys"),
        "the last layer alone": (LastLayer, "self.rooms[seq.seq_id] holds 1 rooms, expected a list of 2, one a layer"),
        "keys and values swapped": (SwapsPrompt, "prompt 0 of 2 (5 tokens), layer 0: k: these are the values"),
        "nothing kept": (KeepsNothing, "self.rooms[seq.seq_id] holds nothing, expected a list of 2"),
        "blocks kept": (KeepsBlocks, "its blocks come back by super().free(seq)"),
        "rooms kept": (KeepsRooms, "the sequence's rooms are still in self.rooms"),
        "rooms before blocks": (RoomsFirst, "freeing twice ends in KeyError; let super().free(seq) refuse it first"),
        "del": (Deletes, "an error in layer 0 of a prefill: the caller gets KeyError instead of it"),
        "all rooms cleared": (ClearsAll, "free threw away the rooms of another sequence"),
        "freeing twice allowed": (FreesTwice, "freeing twice is not refused"),
        "no stage": (Room, "expected a subclass of a stage"),
        "fp32 rooms": (
            Fp32Rooms,
            "a model of 2 layers in bf16: prompt 0 of 2 (5 tokens), layer 0: k: dtype float32, expected bfloat16",
        ),
        "rooms on the CPU": (CpuRooms, "a model on device='meta': prefill ends in NotImplementedError"),
        "two layers": (
            TwoLayers,
            "a model of 5 layers: prompt 0 of 2: self.rooms[seq.seq_id] holds 2 rooms, expected a list of 5",
        ),
        "query heads": (QueryHeads, "a model of 1 layer: checking your answer raised RuntimeError"),
        "64 tokens": (
            SixtyFour,
            "prompts of [65] tokens, a model of 1 layer: prompt 0 of 1 (65 tokens), layer 0: k: shape (2, 64, 16)",
        ),
    },
)
def test_wrong_halves(answer, message, small):
    assert_refused("08.2", answer, message, model=small)
