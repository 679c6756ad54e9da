"""Promises about reuse: a stage never takes a sequence, block or batch for an earlier one that it remembers."""

from __future__ import annotations

import itertools
from random import Random

import torch

from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..broken_promises import lengths_text
from ..making import copy_of
from ..small_models import text_of
from ..teacher_forced import TeacherForced

MODEL = "long"
NEIGHBOURS = 130  # their ids differ from the first one's by anything up to 130: for stages that keep rows by seq_id % n


def neighbours_come_and_go(stage_class: type[Stage], device: str) -> None:
    """Decode one sequence beside 130 others that come and go, each of another id, text and length."""
    run = TeacherForced(stage_class, device, MODEL, num_blocks=5, max_num_seqs=2)
    where = "a sequence that stays while others come and go: "
    stays = run.prefill(text_of(MODEL, NEIGHBOURS + 1, seed=1), 1, where)
    for i in range(NEIGHBOURS):
        passes_by = run.prefill(text_of(MODEL, 12, seed=2 + i % 9), 1 + i % 5, where)
        run.decode([stays, passes_by] if i % 2 else [passes_by, stays], where)
        if i % 3 == 0:
            run.decode([passes_by], where)
        run.free(passes_by)
    run.end([stays])


def other_blocks(stage_class: type[Stage], device: str) -> None:
    """Free a sequence of four blocks and bring it back into other blocks, as if preempted; then do so with new ones.

    From one time to the next a single block differs, or the order, or all of them. A stage that recognises a row by
    less than all of it (its length, its first and last block, their sum) reads blocks of the time before.
    """
    pool = FullPool(stage_class, device)
    for order in ORDERS:
        pool.comes_back(order)
    for order in ORDERS:
        pool.comes_new(order)
    pool.end([pool.neighbour, *pool.fillers.values()])


def _orders() -> list[tuple[int, ...]]:
    """Return orders of four of six blocks: first each that differs from the first order in one place, then others."""
    first = (0, 1, 2, 3)
    one_differs = [first[:i] + (other,) + first[i + 1 :] for other in (4, 5) for i in (1, 2, 0, 3)]
    beside_first = [order for other in one_differs for order in (first, other)]
    permuted = [(0, 2, 1, 3), (1, 0, 2, 3), (3, 1, 2, 0), (3, 2, 1, 0), (2, 1, 0, 3)]
    equal_sums = [(0, 4, 1, 3), (0, 3, 2, 4), (1, 4, 3, 0), (2, 5, 1, 0)]
    drawn = Random(0).sample(list(itertools.permutations(range(6), 4)), 6)
    return [*beside_first, *permuted, *equal_sums, *drawn]


ORDERS = _orders()


class FullPool(TeacherForced):
    """Brings a sequence into chosen blocks: fillers of one block each hold all the others.

    This works because the block tables hand out next the block that was freed last. If they did otherwise, other blocks
    would be tried and judged in the same way.
    """

    def __init__(self, stage_class: type[Stage], device: str) -> None:
        super().__init__(stage_class, device, MODEL, num_blocks=7, block_size=64, max_num_seqs=7)
        self.text = text_of(MODEL, 4 * 64, seed=100)
        self.length = 3 * 64 + 1  # the first of four blocks
        self.preempted: Sequence | None = None
        self.was: list[int] = []
        self.neighbour = self.prefill(text_of(MODEL, 200, seed=101), 1)
        self.fillers: dict[int, Sequence] = {}  # by the block that each has
        self.fill()

    def fill(self) -> None:
        while self.stage.num_free_blocks:
            seq = self.prefill(text_of(MODEL, 64, seed=102 + len(self.fillers)), 64)
            self.fillers[self.stage.tables.of(seq.seq_id, 0)[0]] = seq

    def comes_back(self, order: tuple[int, ...]) -> None:
        """Bring the same sequence back into these blocks, longer by two tokens each time."""
        self.make_way(order)
        where = f"a sequence freed and prefilled again, before in blocks {lengths_text(self.was)}: "
        if self.preempted is None:
            self.preempted = self.prefill(self.text, self.length)
        else:
            self.prefill_again(self.preempted, self.text, where)
        self.step_and_free(self.preempted, where)

    def comes_new(self, order: tuple[int, ...]) -> None:
        """Bring a new sequence of the same text and length into these blocks."""
        self.make_way(order)
        where = f"a sequence as long as the one before, which was in blocks {lengths_text(self.was)}: "
        self.step_and_free(self.prefill(self.text, self.length, where), where)

    def make_way(self, order: tuple[int, ...]) -> None:
        blocks = sorted(self.fillers)
        for place in reversed(order):
            self.free(self.fillers.pop(blocks[place]))

    def step_and_free(self, seq: Sequence, where: str) -> None:
        """Decode it beside the neighbour, and then alone: the second step reads what the first has written."""
        blocks = list(self.stage.tables.of(seq.seq_id, 0))
        for batch in ([self.neighbour, seq], [seq]):
            self.decode(batch, f"{where}now in {lengths_text(blocks)}, ")
        self.was = blocks
        self.free(seq)
        self.fill()


def alike_prompts(stage_class: type[Stage], device: str) -> None:
    """Check prompts that agree in length, in their end, in all but one token, in all but the order, or in everything.

    A stage that shares K and V between sequences, or keeps them after free, must identify a prompt by all its tokens.
    """
    run = TeacherForced(stage_class, device, MODEL, num_blocks=40, block_size=4)
    first, last = text_of(MODEL, 12, seed=1), text_of(MODEL, 4, seed=2)
    one_other = [first[:i] + ((first[i] + 1) % 97,) + first[i + 1 :] for i in range(12)]
    prompts = [first, *one_other, first[::-1], first[6:] + first[:6], first[:4], first[:8], first[4:], first]
    held = []
    for i, prompt in enumerate(prompts):
        where = "after a prompt that is much like it, "
        held.append(run.prefill(prompt + last, len(prompt), where))
        run.decode(held[-4:], where)
        if i >= 3:
            run.free(held.pop(0))
    run.end(held)


def two_at_once(stage_class: type[Stage], device: str) -> None:
    """Run two stages of different sizes on one model. A sequence moves from one to the other and back."""
    model = copy_of(MODEL, device)
    one = TeacherForced(stage_class, device, MODEL, own=model, num_blocks=8, block_size=4, max_num_seqs=3)
    two = TeacherForced(stage_class, device, MODEL, own=model, num_blocks=6, block_size=16, max_num_seqs=2)
    where = "two stages side by side: "
    moves, stays = one.begin((5, 3), 8, where)
    [other] = two.begin((9,), 8, where, seed=9)
    for here, there in ((two, one), (one, two)) * 2:
        there.free(moves)
        here.prefill_again(moves, one.texts[moves.seq_id], where)
        for run, seq in ((one, stays), (two, other)):
            run.decode([seq, moves] if run is here else [seq], where)
    one.end([stays, moves])
    two.end([other])


def leaves_what_is_yours(stage_class: type[Stage], device: str) -> None:
    """Check that a step changes neither the caller's list, nor its sequences' tokens, nor the logits that it keeps."""
    run = TeacherForced(stage_class, device, MODEL, num_blocks=8, block_size=4)
    seqs = run.begin((5, 2, 9), 4)
    run.give_tokens(seqs)
    batch, tokens = seqs[::-1], [list(seq.token_ids) for seq in seqs]
    logits = run.stage.decode(batch)
    kept = logits.clone()
    assert batch == seqs[::-1], "decode changed the caller's list of sequences"
    assert [seq.token_ids for seq in seqs] == tokens, "decode changed token_ids: the caller samples and appends"
    run.decode(batch)
    assert torch.equal(logits, kept), "the logits of one step were other ones after the next step"
    run.end(seqs)


def padding_touches_nothing(stage_class: type[Stage], device: str) -> None:
    """Check that what an earlier batch left in the padding rows of a smaller batch is not written to any block.

    The last sequences of a batch are freed, and others get their blocks. Then the smaller batch runs, and after it the
    new sequences. Such a batch may be padded to a fixed number of rows.
    """
    for most, fewer in ((4, 3), (8, 7), (8, 5)):
        run = TeacherForced(stage_class, device, "two layers", num_blocks=most, block_size=4, max_num_seqs=most)
        seqs = run.begin([1] * most, 3)
        run.decode(seqs)
        for seq in seqs[fewer:]:
            run.free(seq)
        others = run.begin([3] * (most - fewer), 1, seed=most)
        run.decode(seqs[:fewer])
        run.decode(others, f"in blocks freed by rows {fewer} and up, after a step of {fewer} rows: ")
        run.end([*seqs[:fewer], *others])
