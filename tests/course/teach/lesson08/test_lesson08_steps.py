"""Lesson 08: wrong steps and wrong contenders are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lesson08_solutions import Contiguous, Doubling, Mine, MyStep
from wrong_answers import assert_refused, changed, right_answers, wrong_answers

from course.teach import check
from roseinfer.stage import Stage
from stages import SelectAppend

pytestmark = pytest.mark.slow


# 08.4


def with_step(step):
    """step: the class of the steps that build makes."""
    return changed(Mine, build=lambda stage, seqs: step([stage.rooms[seq.seq_id] for seq in seqs]))


def giving(turn):
    """turn: what the step makes of the right output."""
    return with_step(changed(MyStep, __call__=lambda *arguments: turn(MyStep.__call__(*arguments))))


def reading(reads_itself=True, **options):
    """options: of the attention."""

    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        rows = []
        for query, rooms, *own in zip(q, self.rooms, k, v, strict=True):
            kv = rooms[layer].kv()
            if reads_itself:
                kv = [torch.cat([old, new[:, None]], 1) for old, new in zip(kv, own, strict=True)]
            rows.append(F.scaled_dot_product_attention(query[:, None], *kv, **options)[:, 0])
        return torch.stack(rows)

    return with_step(changed(MyStep, __call__=__call__))


class ValuesTwice(Mine):
    def append(self, seqs, step):
        step.new = [(v, v) for _, v in step.new]
        super().append(seqs, step)


class FirstLayer(Mine):
    def append(self, seqs, step):
        for layer in range(self.config.num_layers):
            for i, seq in enumerate(seqs):
                self.rooms[seq.seq_id][layer].append(*(x[i : i + 1] for x in step.new[0]))


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


class Padded(with_step(PaddedStep)):
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


RIGHT_STEPS = {"padded": Padded, "functions": ByFunctions, "inherited": changed(Mine)}


test_right_steps = right_answers("08.4", RIGHT_STEPS, model="small")


test_wrong_steps = wrong_answers(
    "08.4",
    {
        "the new token left out": (
            reading(reads_itself=False, enable_gqa=True),
            "(K and V of every token are kept and read) is broken",
        ),
        "one sequence's room for all": (
            changed(Mine, build=lambda stage, seqs: MyStep([stage.rooms[seqs[0].seq_id]] * len(seqs))),
            "the promise **A batch of equal lengths**",
        ),
        "values twice": (ValuesTwice, "the promise **One sequence**"),
        "layer 0 for every layer": (FirstLayer, "the promise **One sequence**"),
        "no step": (
            changed(Mine, build=lambda stage, seqs: None),
            "build returned None; the model calls what it returns",
        ),
        "a dimension more": (giving(lambda out: out.unsqueeze(2)), "expected (2, 4, 8) = [B, H, D]"),
        "in fp32": (giving(lambda out: out.float()), "the promise **Half precision**"),
        "no groups": (reading(), "the promise **Shared KV heads**"),
        "by a set": (ByASet, "is broken: "),
    },
    model="small",
)


# 08.5


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


def copying(where):
    """Copies the keys where(sequences of the batch, tokens of the room): a race may not show it."""

    def build(stage, seqs):
        step = Doubling.build(stage, seqs)
        rooms = [room for layers in step.rooms for room in layers]
        stage.seen = [room.keys.clone() for room in rooms if where(len(seqs), room.length)]
        return step

    return changed(Doubling, build=build)


class GrowsAlways(Doubling):
    """A larger room on every step."""

    def build(self, seqs):
        for room in (room for seq in seqs for room in self.rooms[seq.seq_id]):
            room.keys, room.values = room.grown(room.keys, room.length + 1), room.grown(room.values, room.length + 1)
        return super().build(seqs)


class UnevenStep(MyStep):
    """As the solution's, with keys cut at another length than values: by so many tokens, or not at all for None."""

    more = None

    def __call__(self, layer, q, k, v):
        out = torch.empty_like(q)
        for i, rooms in enumerate(self.rooms):
            room, end = rooms[layer], rooms[layer].length + 1
            room.keys[:, end - 1], room.values[:, end - 1] = k[i], v[i]
            keys = room.keys if self.more is None else room.keys[:, : end + self.more]
            query, values = q[i][None, :, None], room.values[None, :, :end]
            out[i] = F.scaled_dot_product_attention(query, keys[None], value=values, enable_gqa=True)[0, :, 0]
        return out


class UncutKeys(Doubling):
    step_class = UnevenStep

    def build(self, seqs):
        return self.step_class(super().build(seqs).rooms)


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


RIGHT_CONTENDERS = {"a slab": Slab, "inherited": changed(Doubling), "in two parts": InTwoParts}


test_right_contenders = right_answers("08.5", RIGHT_CONTENDERS, model="small")


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
        "the first layer alone counts": (NotCounted, "prompt 2 of 4 (mixed lengths): token"),
        "a copy for later": (Stacks, "Is attention given a copy?"),
        "one token short in a batch": (CountsInBuild, "prompt 3 of 4 (mixed lengths): token"),
        "an object": ("Doubling", "expected a subclass of a stage, got 'Doubling'"),
        "copies when alone": (copying(lambda seqs, tokens: seqs == 1), "with 1 × 20 tokens cached copies 8,960 bytes"),
        "copies the long": (
            copying(lambda seqs, tokens: tokens > 150),
            "with 2 × 170 tokens cached copies 132,608 bytes",
        ),
        "copies large batches": (
            copying(lambda seqs, tokens: seqs > 6),
            "with 9 × 40 tokens cached copies 154,368 bytes",
        ),
        "copies batches of more than 9": (copying(lambda seqs, tokens: seqs > 9), "with 17 × 30 tokens cached copies"),
        "keys not cut": (UncutKeys, "attention gets keys of 16 tokens and values of 4: cut both alike"),
        "a key too few": (
            changed(UncutKeys, step_class=changed(UnevenStep, more=-1)),
            "attention gets keys of 3 tokens and values of 4: cut both alike",
        ),
        "grows on every step": (GrowsAlways, "with 1 × 20 tokens cached copies 11,008 bytes"),
    },
    model="small",
)


def test_half_a_stub_is_judged(small):
    class HalfWritten(Contiguous):
        def free(self, seq): ...

    class NoAppend(Mine):
        def append(self, seqs, step): ...

    assert_refused("08.3", HalfWritten, "after free the base class still holds the sequence", model=small)
    assert_refused("08.4", NoAppend, "the promise **One sequence**", model=small)
    assert check("08.5", None, model=small).outcome == "not attempted"
