"""Lesson 08: wrong halves of a stage are told what is wrong, and right ones pass."""

from __future__ import annotations

from collections import defaultdict

from lesson08_solutions import Contiguous, OneTensor, Room
from wrong_answers import right_answers, wrong_answers

from roseinfer.stage import Stage


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


class OtherSizes(Contiguous):
    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        Stage.__init__(self, model, num_blocks=num_blocks, block_size=max_num_seqs, max_num_seqs=max_num_seqs)
        self.rooms = {}


class DropsSizes(Contiguous):
    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size)


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
    "all at once": AllAtOnce,
    "defaultdict": WithDefaults,
    "inherited": FromMyHalf,
}


test_right_halves = right_answers("08.2", RIGHT_HALVES, model="small")


test_wrong_halves = wrong_answers(
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
        "sizes mixed up": (OtherSizes, "a stage made with block_size=8 has block_size=3: hand all sizes on"),
        "a size not handed on": (DropsSizes, "a stage made with max_num_seqs=3 has max_num_seqs=64"),
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
    model="small",
)
