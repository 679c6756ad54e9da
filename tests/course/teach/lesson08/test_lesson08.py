"""Lesson 08: wrong halves of a stage are told what is wrong, and right ones pass."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import torch
from lesson08_solutions import Contiguous, OneTensor, Room
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.stage import Stage

half_with = partial(solution, "08.3", __name__=__name__, torch=torch, Stage=Stage, Room=Room)
FREE_BLOCKS, FREE_ROOMS, KEPT = "        super().free(seq)\n", "self.rooms.pop(seq.seq_id, None)", "append(room)"


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


test_right_halves = right_answers("08.3", {"all at once": AllAtOnce, "defaultdict": WithDefaults}, model="small")


test_wrong_halves = wrong_answers(
    "08.3",
    {
        "one room for all layers": (
            half_with({KEPT: f"{KEPT}; self.rooms[seq.seq_id] = self.rooms[seq.seq_id][:1] * (layer + 1)"}),
            "prompt 0 of 2: layer 1's keys: these are layer 0's keys",
        ),
        "rooms kept": (half_with({FREE_ROOMS: "pass"}), "the sequence's rooms are still in self.rooms"),
        "rooms before blocks": (
            half_with({FREE_BLOCKS: f"        del self.rooms[seq.seq_id]\n{FREE_BLOCKS}"}),
            "freeing a sequence twice ends in a KeyError",
        ),
        "del": (
            half_with({FREE_ROOMS: "del self.rooms[seq.seq_id]"}),
            "in prefill: the caller gets a KeyError instead",
        ),
        "all rooms cleared": (half_with({FREE_ROOMS: "self.rooms.clear()"}), "**Neighbours come and go**"),
        "freeing twice allowed": (
            half_with({FREE_BLOCKS: f"        if self.holds(seq):\n    {FREE_BLOCKS}"}),
            "freeing a sequence twice is not refused",
        ),
        "no stage": (Room, "expected a subclass of a stage"),
        "rooms on the CPU": (
            half_with({"device=k.device": "device='cpu'"}),
            "device='meta': a model there has a prompt",
        ),
        "a size not handed on": (
            half_with({", max_num_seqs=max_num_seqs": ""}),
            "made with max_num_seqs=3, the stage has 64",
        ),
    },
    model="small",
)
