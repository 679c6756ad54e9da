"""Lesson 08: wrong steps and wrong contenders are told what is wrong, and right ones pass."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from lesson08_solutions import Contiguous, Mine, MyStep
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.stage import Stage
from stages import SelectAppend

pytestmark = pytest.mark.slow


# 08.4


step_with = partial(solution, "08.4", __name__=__name__, torch=torch, F=F, Contiguous=Contiguous)
ROOMS = "[self.rooms[seq.seq_id] for seq in seqs]"
OWN = {
    "            keys = torch.cat([keys, k[i].unsqueeze(1)], dim=1)\n": "",
    "            values = torch.cat([values, v[i].unsqueeze(1)], dim=1)\n": "",
}


class ByASet(Mine):
    """Looks the rooms up when the batch has other members."""

    members = None

    def build(self, seqs):
        members = {seq.seq_id for seq in seqs}
        if members != self.members:
            self.members, self.found = members, [self.rooms[seq.seq_id] for seq in seqs]
        return MyStep(self.found)


class PaddedStep:
    """The whole batch in one call, padded, with a mask."""

    def __init__(self, rooms):
        self.rooms, self.new = rooms, {}

    def __call__(self, layer, q, k, v):
        self.new[layer] = k, v
        lengths = [layers[layer].kv()[0].size(1) for layers in self.rooms]
        dense = []
        for which, new in ((0, k), (1, v)):
            batch = q.new_zeros(len(q), k.size(1), max(lengths) + 1, q.size(2))
            for row, n, layers, token in zip(batch, lengths, self.rooms, new, strict=True):
                row[:, :n] = layers[layer].kv()[which]
                row[:, n] = token
            dense.append(batch)
        tokens = torch.arange(max(lengths) + 1, device=q.device)
        mask = tokens <= torch.tensor(lengths, device=q.device)[:, None]
        return F.scaled_dot_product_attention(q[:, :, None], *dense, mask[:, None, None], enable_gqa=True)[:, :, 0]


class Padded(Mine):
    def build(self, seqs):
        return PaddedStep([self.rooms[seq.seq_id] for seq in seqs])

    def append(self, seqs, step):
        for layer in sorted(step.new):
            for room, k, v in zip((layers[layer] for layers in step.rooms), *step.new[layer], strict=True):
                room.append(k[None], v[None])


class ByFunctions(Contiguous):
    """A step is a function; what append needs is kept in the stage."""

    def build(self, seqs):
        self.new = []

        def step(layer, q, k, v):
            self.new.append((k, v))
            rows = []
            for i, seq in enumerate(seqs):
                keys, values = self.rooms[seq.seq_id][layer].kv()
                keys, values = torch.cat([keys, k[i][:, None]], 1), torch.cat([values, v[i][:, None]], 1)
                query = q[i].unflatten(0, (k.size(1), -1)).float() * q.size(2) ** -0.5
                weights = torch.einsum("hgd,htd->hgt", query, keys.float()).softmax(-1)
                rows.append(torch.einsum("hgt,htd->hgd", weights, values.float()).flatten(0, 1).to(q.dtype))
            return torch.stack(rows)

        return step

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(self.new):
            for i, seq in enumerate(seqs):
                self.rooms[seq.seq_id][layer].append(k[i][None], v[i][None])
        self.new = []


test_right_steps = right_answers("08.4", {"padded": Padded, "functions": ByFunctions}, model="small")


test_wrong_steps = wrong_answers(
    "08.4",
    {
        "the new token left out": (step_with(OWN), "(K and V of every token are kept and read) is broken"),
        "one sequence's room for all": (
            step_with({ROOMS: "[self.rooms[seqs[0].seq_id]] * len(seqs)"}),
            "the promise **A batch of equal lengths**",
        ),
        "values twice": (step_with({"append((k, v))": "append((v, v))"}), "the promise **One sequence**"),
        "layer 0 for every layer": (
            step_with({"enumerate(step.new)": "enumerate(step.new[:1] * len(step.new))"}),
            "the promise **One sequence**",
        ),
        "no step": (step_with({"return MyStep": "MyStep"}), "build returned None; the model calls what it returns"),
        "a dimension more": (step_with({"return out": "return out.unsqueeze(2)"}), "expected (2, 4, 8) = [B, H, D]"),
        "no groups": (step_with({", enable_gqa=True": ""}), "the promise **Shared KV heads**"),
        "by a set": (ByASet, "is broken: "),
    },
    model="small",
)


# 08.5


contender_with = partial(solution, "08.5", __name__=__name__, torch=torch, F=F, MyStep=MyStep, Mine=Mine)
BUILT, CUT = "        return InPlaceStep(rooms)", "room.keys[None, :, :end],"
COUNTED = "for room in (room for layers in step.rooms for room in layers):\n            room.length += 1"
SHORT = f"        if len(seqs) > 2:\n            rooms[-1][0].length -= 1\n{BUILT}"
GROWN = "room.keys, room.values = (room.grown(old, room.length + 1) for old in (room.keys, room.values))"


def copying(where):
    """Copies the keys of a room where that is true: a race may not show it."""
    kept = f"        self.seen = [room.keys.clone() for layers in rooms for room in layers if {where}]\n"
    return contender_with({BUILT: kept + BUILT})


class Slab(Stage):
    """One tensor a layer with a place for each sequence, as long as the model's longest."""

    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        c, longest = self.config, min(self.config.max_model_len, num_blocks * block_size)
        shape = (2, c.num_layers, max_num_seqs, c.num_kv_heads, longest, c.head_dim)
        self.cache = torch.empty(shape, dtype=model.dtype, device=model.device)
        self.places = {}

    def write_prompt(self, seq, layer, k, v):
        if seq.seq_id not in self.places:
            self.places[seq.seq_id] = min(set(range(self.max_num_seqs)) - set(self.places.values()))
        for cache, new in zip(self.cache, (k, v), strict=True):
            cache[layer, self.places[seq.seq_id], :, : len(k)] = new.transpose(0, 1)

    def build(self, seqs):
        places = [(self.places[seq.seq_id], seq.num_cached_tokens) for seq in seqs]

        def step(layer, q, k, v):
            out = torch.empty_like(q)
            for i, (place, n) in enumerate(places):
                keys, values = self.cache[:, layer, place, :, : n + 1].unbind()
                keys[:, n], values[:, n] = k[i], v[i]
                row = F.scaled_dot_product_attention(q[i][None, :, None], keys[None], values[None], enable_gqa=True)
                out[i] = row[0, :, 0]
            return out

        return step

    def append(self, seqs, step):
        """The tokens are in their places."""

    def free(self, seq):
        super().free(seq)
        self.places.pop(seq.seq_id, None)


class InTwoParts(Mine):
    """Attends to the room and to the new token apart, and merges the two softmaxes."""

    def build(self, seqs):
        rooms = [self.rooms[seq.seq_id] for seq in seqs]
        step = MyStep(rooms)

        def attend(layer, q, k, v):
            step.new.append((k, v))
            out, scale = torch.empty_like(q), q.size(2) ** -0.5
            for i, layers in enumerate(rooms):
                keys, values = layers[layer].kv()
                query = q[i].unflatten(0, (k.size(1), -1)) * scale
                cached, own = query @ keys.mT, query @ k[i].unsqueeze(2)  # [H_kv, group, T], [H_kv, group, 1]
                top = torch.maximum(cached.amax(2, keepdim=True), own)
                cached, own = (cached - top).exp(), (own - top).exp()
                total = cached.sum(2, keepdim=True) + own
                out[i] = ((cached @ values + own * v[i].unsqueeze(1)) / total).flatten(0, 1)
            return out

        attend.new = step.new
        return attend


test_right_contenders = right_answers("08.5", {"a slab": Slab, "in two parts": InTwoParts}, model="small")


test_wrong_contenders = wrong_answers(
    "08.5",
    {
        "the cat of 08.4": (
            Mine,
            "with 1 × 20 tokens cached copies 11,520 bytes (1.1 times all that is cached); the budget is 1,024",
        ),
        "a stage that gathers": (
            SelectAppend,
            "with 1 × 20 tokens cached copies 21,504 bytes (2.1 times all that is cached)",
        ),
        "the first layer alone counts": (
            contender_with({COUNTED: "for layers in step.rooms:\n            layers[0].length += 1"}),
            "prompt 2 of 4 (mixed lengths): token",
        ),
        "one token short in a batch": (contender_with({BUILT: SHORT}), "prompt 3 of 4 (mixed lengths): token"),
        "an object": ("Doubling", "expected a subclass of a stage, got 'Doubling'"),
        "copies when alone": (copying("len(seqs) == 1"), "with 1 × 20 tokens cached copies 8,960 bytes"),
        "copies the long": (copying("room.length > 150"), "with 2 × 170 tokens cached copies 132,608 bytes"),
        "copies large batches": (copying("len(seqs) > 6"), "with 9 × 40 tokens cached copies 154,368 bytes"),
        "keys not cut": (
            contender_with({CUT: "room.keys[None],"}),
            "attention gets keys of 16 tokens and values of 4: cut both alike",
        ),
        "grows on every step": (
            contender_with({"room.make_room(room.length + 1)": GROWN}),
            "with 1 × 20 tokens cached copies 11,008 bytes",
        ),
    },
    model="small",
)
