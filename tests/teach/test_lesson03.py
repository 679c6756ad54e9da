"""Lesson 03: wrong answers to its exercises are told what is wrong, and what they are made from is right."""

from __future__ import annotations

import nbformat
from wrong_answers import assert_refused, wrong_answers

from roseinfer.paths import ROOT
from roseinfer.teach import check
from stages import SelectAppend
from stages.s01_naive_cat import DenseStep
from tools.contradictions import table, texts

# 03.1


def ranges(index, colons=False):
    return sum(isinstance(part, slice) and (colons or part != slice(None)) for part in index)


def start_must_be_given(index, shape, free):
    covered = sum(part == slice(0, size) for part, size in zip(index, shape, strict=False))
    return ranges(index, colons=not free) - covered


def start_from_none(index, shape, free):
    """Ranges without a start that cover their dimension."""
    return sum(part == slice(None, size) for part, size in zip(index, shape, strict=False))


@wrong_answers(
    "03.1",
    {
        "every part": (
            lambda index, shape, free: len(index),
            "index [0, 1:2] of shape (2, 3, 4), colon_is_free=False: 2: an integer is a select",
        ),
        "every dimension": (
            lambda index, shape, free: len(shape),
            "3: a dimension that the index does not name",
        ),
        "colons always cost": (
            lambda index, shape, free: ranges(index, colons=True),
            "index [0, :] of shape (2, 3), colon_is_free=True: 1: a bare `:` is no slice from torch 2.9 on",
        ),
        "colons never cost": (
            lambda index, shape, free: ranges(index),
            "index [0, :] of shape (2, 3), colon_is_free=False: 0: a bare `:` is a slice before torch 2.9",
        ),
        "colons cost the wrong way round": (
            lambda index, shape, free: ranges(index, colons=free),
            "colon_is_free=False: 0: a bare `:` is a slice before torch 2.9",
        ),
        "covering ranges counted": (
            lambda index, shape, free: ranges(index, colons=not free),
            "index [0:2, :] of shape (2, 3), colon_is_free=False: 2: a range that covers its whole dimension",
        ),
        "no start is not 0": (start_must_be_given, "index [:3] of shape (3, 4), colon_is_free=False: 1: a range that"),
        "yes or no": (lambda index, shape, free: bool(ranges(index)), "expected a number, got bool"),
    },
)
def test_a_wrong_slice_rule(answer, message):
    assert_refused("03.1", answer, message)


# 03.2


@wrong_answers(
    "03.2",
    {
        "too many sequences": ([4] * 16, "16 sequences make 384 copies a step; the post's table has 192"),
        "a sequence too few": ([4] * 6 + [5], "7 sequences make 168 copies a step; the post's table has 192"),
        "equal lengths": ([4] * 8, "these lengths make 960 slices, the post has 1128; 8 of them are longest"),
        "two longest": ([4] * 6 + [5] * 2, "these lengths make 1104 slices, the post has 1128; 2 of them are longest"),
        "a block full": ([4] * 7 + [64], "expected a list of lengths from 1 to 63"),
        "fractions": ([4.0] * 8, "expected a list of lengths from 1 to 63"),
        "a count": (8, "expected a list of lengths from 1 to 63, got 8"),
        "an empty batch": ([], "the batch is empty"),
    },
)
def test_a_wrong_batch_of_the_post(answer, message):
    assert_refused("03.2", answer, message)


# 03.3


class LongestPosition(SelectAppend):
    def positions(self, seqs):
        return [max(seq.num_cached_tokens for seq in seqs)] * len(seqs)


@wrong_answers(
    "03.3",
    {
        "equal lengths": ([[1, 2], [3, 4]], "all prompts have 2 tokens"),
        "one sequence": ([[1, 2, 3]], "one sequence alone"),
        "one prompt, not a list of them": ([1, 2], "expected a list of prompts"),
        "text": (["a long prompt", "short"], "expected a list of prompts, each a list of token ids"),
        "words": ([["a", "long", "one"], ["short"]], "expected a list of prompts, each a list of token ids"),
        "an empty prompt": ([[1, 2, 3], []], "expected a list of prompts, each a list of token ids"),
        "no prompt": ([], "expected a list of prompts, each a list of token ids, got []"),
        "a token the model has not": ([[1, 2, 3], [5000]], "token id 5000 is out of range"),
        "a prompt that does not fit": ([[1] * 190, [2]], "allowed: max_model_len=192"),
    },
)
def test_prompts_that_cannot_reveal_the_bug(small, answer, message):
    assert_refused("03.3", lambda: answer, message, buggy_stage=LongestPosition, model=small)


def test_prompts_that_reveal_nothing_because_there_is_no_bug(small):
    prompts = [[1, 2, 3, 4, 5, 6], [7]]
    assert_refused("03.3", lambda: prompts, "the tokens happen to be equal", buggy_stage=SelectAppend, model=small)
    assert check("03.3", lambda: prompts, buggy_stage=LongestPosition, model=small)


# 03.4


class Keep(DenseStep):
    """Keeps each layer's new k and v [B, H_kv, D]."""

    def __init__(self, past, mask):
        super().__init__(past, mask)
        self.new = []

    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        return super().__call__(layer, q, k, v)


class AppendOfMyOwn(SelectAppend):
    """Right, with 4 selects for each layer and sequence. The mistakes below change what is written."""

    def build(self, seqs):
        step = super().build(seqs)
        return Keep(step.past, step.mask)

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(step.new):
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k[i], v[i])


class KeysForValues(AppendOfMyOwn):
    def append_token(self, seq, layer, k, v):
        super().append_token(seq, layer, k, k)


class ValuesSwapped(AppendOfMyOwn):
    def append_token(self, seq, layer, k, v):
        super().append_token(seq, layer, v, k)


class LastLayerForAll(AppendOfMyOwn):
    def append(self, seqs, step):
        super().append(seqs, type("Step", (), {"new": [step.new[-1]] * len(step.new)}))


class FirstLayerWritten(AppendOfMyOwn):
    def append(self, seqs, step):
        super().append(seqs, type("Step", (), {"new": step.new[:1]}))


class FirstSequenceForAll(AppendOfMyOwn):
    def append(self, seqs, step):
        for layer, (k, v) in enumerate(step.new):
            for seq in seqs:
                self.append_token(seq, layer, k[0], v[0])


class OverTheTokenBefore(AppendOfMyOwn):
    def append_token(self, seq, layer, k, v):
        index, slot = divmod(seq.num_cached_tokens - 1, self.block_size)
        k_block, v_block = self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]
        k_block[:, slot], v_block[:, slot] = k, v


class LongestSlot(AppendOfMyOwn):
    """Writes where the longest sequence's new token goes."""

    def append_token(self, seq, layer, k, v):
        slot = self.longest % self.block_size
        k_block, v_block = self.blocks[layer][self.tables.of(seq.seq_id, layer)[-1]]
        k_block[:, slot], v_block[:, slot] = k, v

    def append(self, seqs, step):
        self.longest = max(seq.num_cached_tokens for seq in seqs)
        super().append(seqs, step)


class SelectForEach(SelectAppend):
    def append(self, seqs, step):
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            new = k_batch.size(2) - 1
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k_batch[i, :, new], v_batch[i, :, new])


class AsItWas(SelectAppend):
    def append(self, seqs, step):
        super().append(seqs, step)


AFTER = "layer 0, prompt 0 (4 cached tokens) after one step: "


@wrong_answers(
    "03.4",
    {
        "keys for values": (KeysForValues, f"{AFTER}v: "),
        "keys and values swapped": (ValuesSwapped, f"{AFTER}k: 32 of 128 values differ, first at (0, 0, 3, 0)"),
        "the last layer for all": (LastLayerForAll, f"{AFTER}k: 32 of 128 values differ, first at (0, 0, 3, 0)"),
        "one layer written": (FirstLayerWritten, "layer 1, prompt 0 (4 cached tokens) after one step: k: 32 of 128"),
        "the first sequence for all": (FirstSequenceForAll, "layer 0, prompt 1 (70 cached tokens) after one step: k: "),
        "over the token before": (OverTheTokenBefore, f"{AFTER}k: 64 of 128 values differ, first at (0, 0, 2, 0)"),
        "the longest's slot": (LongestSlot, f"{AFTER}k: 32 of 128 values differ, first at (0, 0, 3, 0): got 0"),
        "select for each sequence": (SelectForEach, "16 selects too many (48, the budget is 32, 4 for each"),
        "as stage 03 does it": (AsItWas, "append makes 4 selects too many (36, the budget is 32"),
        "the step, not the stage": (Keep, "expected a subclass of a stage"),
    },
)
def test_a_wrong_append(small, answer, message):
    assert_refused("03.4", answer, message, model=small)


def test_the_right_answers_that_wrong_ones_are_made_from(small):
    assert check("03.1", lambda *case: start_must_be_given(*case) - start_from_none(*case))
    assert check("03.2", [4] * 7 + [5])
    assert check("03.4", AppendOfMyOwn, model=small)


def test_the_ops_of_the_append_are_the_same_wherever_the_lesson_shows_them():
    nb = nbformat.read(ROOT / "notebooks" / "03_select_append.ipynb", as_version=4)
    page = [text for cell in nb.cells if cell.cell_type == "code" for text in texts(cell)]
    [profiled] = [
        rows for title, rows in map(table, page) if title == "aten ops in the first roseinfer.kv.append_token"
    ]
    ops = {row["name"].removeprefix("aten::"): int(row["n"]) for row in profiled}
    [grouped] = [rows for _, rows in map(table, page) if rows and rows[0].get("name") == "only a view"]
    assert {row["name"]: int(row["n"]) for row in grouped} == {
        "only a view": ops["select"] + ops["slice"],
        "moves bytes": ops["copy_"],
    }
    [counted] = [text for text in page if text.startswith("selects before:")]
    assert counted.startswith(f"selects before: {ops['select']} ")
    assert f"copies before and after: {ops['copy_']} {ops['copy_']}\n" in counted
