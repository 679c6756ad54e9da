"""Lesson 08: wrong halves of a stage are told what is wrong, and right ones pass."""

from __future__ import annotations

from collections import defaultdict

from lesson08_solutions import Contiguous, OneTensor, Room
from wrong_answers import changed, right_answers, wrong_answers

from roseinfer.stage import Stage


def writing(turn):
    """turn(config, k, v): the keys and values that are written."""

    def write_prompt(stage, seq, layer, k, v):
        Contiguous.write_prompt(stage, seq, layer, *turn(stage.config, k, v))

    return changed(Contiguous, write_prompt=write_prompt)


def freeing(free):
    return changed(Contiguous, free=free)


def free_rooms_first(stage, seq):
    del stage.rooms[seq.seq_id]
    Stage.free(stage, seq)


def free_and_delete(stage, seq):
    Stage.free(stage, seq)
    del stage.rooms[seq.seq_id]


def free_all(stage, seq):
    Stage.free(stage, seq)
    stage.rooms.clear()


class OneRoom(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k, v)
        self.rooms[seq.seq_id] = [self.rooms[seq.seq_id][0]] * (layer + 1)


class LastLayer(Contiguous):
    def write_prompt(self, seq, layer, k, v):
        self.rooms.pop(seq.seq_id, None)
        super().write_prompt(seq, layer, k, v)


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


RIGHT_HALVES = {
    "all at once": AllAtOnce,
    "defaultdict": WithDefaults,
    "inherited": changed(Contiguous),
}


test_right_halves = right_answers("08.3", RIGHT_HALVES, model="small")


test_wrong_halves = wrong_answers(
    "08.3",
    {
        "one room for all layers": (OneRoom, "prompt 0 of 2 (5 tokens), layer 1: k: these are layer 0's keys"),
        "the last layer alone": (
            LastLayer,
            "self.rooms[seq.seq_id] holds 1 rooms, expected a list of 2, one per layer",
        ),
        "keys and values swapped": (
            writing(lambda config, k, v: (v, k)),
            "prompt 0 of 2 (5 tokens), layer 0: k: these are the values",
        ),
        "nothing kept": (
            changed(Contiguous, write_prompt=lambda *prompt: None),
            "self.rooms[seq.seq_id] holds nothing, expected a list of 2",
        ),
        "blocks kept": (
            freeing(lambda stage, seq: stage.rooms.pop(seq.seq_id, None)),
            "super().free(seq) frees its blocks",
        ),
        "rooms kept": (freeing(Stage.free), "the sequence's rooms are still in self.rooms"),
        "rooms before blocks": (
            freeing(free_rooms_first),
            "freeing twice ends in KeyError; let super().free(seq) refuse it first",
        ),
        "del": (
            freeing(free_and_delete),
            "an error in layer 0 of a prefill: the caller gets KeyError instead of it",
        ),
        "all rooms cleared": (freeing(free_all), "free dropped the rooms of another sequence"),
        "freeing twice allowed": (
            freeing(lambda stage, seq: Contiguous.free(stage, seq) if stage.holds(seq) else None),
            "freeing twice is not refused",
        ),
        "no stage": (Room, "expected a subclass of a stage"),
        "fp32 rooms": (
            writing(lambda config, k, v: (k.float(), v.float())),
            "a model of 2 layers in bf16: prompt 0 of 2 (5 tokens), layer 0: k: dtype float32, expected bfloat16",
        ),
        "rooms on the CPU": (CpuRooms, "a model on device='meta': prefill ends in NotImplementedError"),
        "sizes mixed up": (OtherSizes, "a stage made with block_size=8 has block_size=3: pass all sizes to super"),
        "a size not handed on": (DropsSizes, "a stage made with max_num_seqs=3 has max_num_seqs=64"),
        "two layers": (
            TwoLayers,
            "a model of 5 layers: prompt 0 of 2: self.rooms[seq.seq_id] holds 2 rooms, expected a list of 5",
        ),
        "query heads": (  # room for every query head, each with a copy of its KV head's keys
            writing(lambda c, *kv: [x.repeat_interleave(c.num_heads // c.num_kv_heads, 1) for x in kv]),
            "a model of 1 layer: checking your answer raised RuntimeError",
        ),
        "64 tokens": (
            writing(lambda config, k, v: (k[:64], v[:64])),
            "prompts of [65] tokens, a model of 1 layer: prompt 0 of 1 (65 tokens), layer 0: k: shape (2, 64, 16)",
        ),
    },
    model="small",
)
