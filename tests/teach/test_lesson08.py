"""Lesson 08: wrong answers to its exercises are told what is wrong, and the seam's picture has the right shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import assert_refused, wrong_answers

from roseinfer.paths import ROOT
from roseinfer.stage import Stage
from roseinfer.teach import check, draw_seam
from stages import NaiveCat, SelectAppend
from tools.solutions import parse_solutions

SOLUTIONS = ROOT / "notebooks/solutions/08_your_own_stage.py"
names = {"torch": torch, "F": F, "Stage": Stage, "__name__": __name__}
for source in parse_solutions(SOLUTIONS.read_text(encoding="utf-8")).values():
    exec(source, names)
Room, Contiguous, MyStep, Mine, Doubling = (
    names[name] for name in ("Room", "Contiguous", "MyStep", "Mine", "Doubling")
)


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


@wrong_answers(
    "08.1",
    {
        "tokens first": (TokensFirst, "k: shape (5, 2, 4), expected (2, 5, 4): values right after permute(1, 0, 2)"),
        "cat": (Cats, "copy 250.5 bytes for each byte kept; the budget is 3"),
        "16 more": (SixteenMore, "Does the room double, or grow by the same amount each time?"),
        "keys twice": (KeysTwice, "appended 5 tokens: v: these are the keys, not the values"),
        "old tokens lost": (StartsAfresh, "appended 3, 1, 20, 1 tokens: k: the first 4 tokens are lost"),
        "keeps what it is given": (KeepsTheTensors, "it changed with the tensor that was appended, after the call"),
        "the whole room": (WholeRoom, "appended 5 tokens: k: shape (2, 16, 4), expected (2, 5, 4)"),
        "kv copies": (Copies, "the values are right, but kv() copies: return slices"),
        "always fp32": (AlwaysFp32, "a room made with dtype=torch.bfloat16 holds torch.float32"),
        "huge from the start": (Huge, "the room for 500 tokens holds 262,144 bytes; twice what is kept"),
        "doubles once": (DoublesOnce, "RuntimeError"),
        "keys alone": (KeysAlone, "kv() must return a pair of tensors (k, v), got Tensor"),
        "an object": (3, "expected the class Room, got 3"),
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
    },
)
def test_wrong_halves(answer, message, small):
    assert_refused("08.2", answer, message, model=small)


# 08.3


class WithoutItself(MyStep):
    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        rows = []
        for i, rooms in enumerate(self.rooms):
            keys, values = rooms[layer].kv()
            rows.append(F.scaled_dot_product_attention(q[i][:, None], keys, values, enable_gqa=True)[:, 0])
        return torch.stack(rows)


class NotItself(Mine):
    def build(self, seqs):
        return WithoutItself([self.rooms[seq.seq_id] for seq in seqs])


class FirstRoom(Mine):
    def build(self, seqs):
        return MyStep([self.rooms[seqs[0].seq_id] for _ in seqs])


class ValuesTwice(Mine):
    def append(self, seqs, step):
        step.new = [(v, v) for _, v in step.new]
        super().append(seqs, step)


class FirstLayer(Mine):
    def append(self, seqs, step):
        for layer in range(self.config.num_layers):
            for i, seq in enumerate(seqs):
                self.rooms[seq.seq_id][layer].append(*(x[i : i + 1] for x in step.new[0]))


class BuildsNothing(Mine):
    def build(self, seqs):
        self.seqs = seqs


class AddsADimension(Mine):
    def build(self, seqs):
        step = super().build(seqs)

        def attend(layer, q, k, v):
            return step(layer, q, k, v).unsqueeze(2)

        return attend


@wrong_answers(
    "08.3",
    {
        "the new token left out": (
            NotItself,
            "(K and V of every token are kept and read) is broken",
        ),
        "one sequence's room for all": (FirstRoom, "the promise **A batch of equal lengths**"),
        "values twice": (ValuesTwice, "the promise **One sequence**"),
        "layer 0 for every layer": (FirstLayer, "the promise **One sequence**"),
        "no step": (BuildsNothing, "build returned None; the model calls what it returns"),
        "a dimension more": (AddsADimension, "expected (2, 4, 8) = [B, H, D]"),
    },
)
def test_wrong_steps(answer, message, small):
    assert_refused("08.3", answer, message, model=small)


# 08.4


class NotCounted(Doubling):
    def append(self, seqs, step):
        for layers in step.rooms:
            layers[0].length += 1


class Stacks(Doubling):
    """Reads the rooms where they are, and then asks for them all."""

    def append(self, seqs, step):
        super().append(seqs, step)
        self.seen = [room.keys.clone() for layers in step.rooms for room in layers]

    def free(self, seq):
        super().free(seq)
        self.seen = []


class CountsInBuild(Doubling):
    def build(self, seqs):
        step = super().build(seqs)
        if len(seqs) > 2:
            self.rooms[seqs[-1].seq_id][0].length -= 1
        return step


@wrong_answers(
    "08.4",
    {
        "the cat of 08.3": (Mine, "copies 209,920 bytes (1.0 times all that is cached); the budget is 4,096"),
        "a stage that gathers": (SelectAppend, "the contract is kept, but a step of 4 sequences of 100 tokens copies"),
        "the first layer alone counts": (NotCounted, "the promise **One sequence**"),
        "a copy for later": (Stacks, "Does attention get a copy?"),
        "one token short in a batch": (CountsInBuild, "the promise **A batch of equal lengths**"),
        "an object": ("Doubling", "expected a subclass of a stage, got 'Doubling'"),
    },
)
def test_wrong_contenders(answer, message, small):
    assert_refused("08.4", answer, message, model=small)


def test_right_answers_pass(small):
    assert check("08.1", Room)
    assert check("08.2", Contiguous, model=small)
    assert check("08.3", Mine, model=small)
    assert check("08.4", Doubling, model=small)


def test_half_a_stub_is_judged(small):
    class HalfWritten(Contiguous):
        def free(self, seq): ...

    class NoAppend(Mine):
        def append(self, seqs, step): ...

    class NoBuild(Mine):
        def build(self, seqs): ...

    assert_refused("08.2", HalfWritten, "behind free the base class still holds the sequence", model=small)
    assert_refused("08.3", NoAppend, "the promise **One sequence**", model=small)
    assert_refused("08.3", NoBuild, "build returned None; the model calls what it returns", model=small)
    assert check("08.4", None, model=small).outcome == "not attempted"


# The picture.


@pytest.mark.parametrize("stage_class", [NaiveCat, Doubling], ids=lambda cls: cls.__name__)
def test_the_seam_is_drawn_from_a_real_run(stage_class, grouped):
    assert repr(draw_seam(stage_class, grouped, [3, 7])).splitlines()[1:] == [
        "write_prompt × 4: gets seq, layer, k and v [7, 2, 8] = [N, H_kv, D]; gives nothing",
        "build × 1: gets 2 sequences; gives step, which the model calls once a layer",
        "step × 2: gets layer, q [2, 4, 8] = [B, H, D], k and v [2, 2, 8] = [B, H_kv, D]; gives [2, 4, 8] = [B, H, D]",
        "append × 1: gets 2 sequences, and the step, which kept k and v; gives nothing",
    ]
