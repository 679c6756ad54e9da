"""Lesson 19's picture: drafts step by step."""

from __future__ import annotations

import numpy as np
import pytest

from course.teach.exercises.solutions import solution
from course.teach.lesson19.draft_picture import DraftStep, picture_of, readable
from course.teach.lesson19.drafts import draw_drafts, record_drafts
from course.teach.lesson19.own_draft import with_draft
from roseinfer import load_model, load_tokenizer
from roseinfer.generate import generate
from roseinfer.sequence import SamplingParams, Sequence
from stages import OneKernel, Policies, Speculative

PROMPT = "Return True if the string is a string. Return True if the string"
REPEATING = "Return the number of bytes in the string. Return the number"


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def ids_of(tokenizer, *texts):
    """The id of each text, which is one token."""
    ids = [tokenizer.encode(text).ids for text in texts]
    assert all(len(one) == 1 for one in ids), ids
    return tuple(one[0] for one in ids)


@pytest.fixture(scope="module")
def steps(tokenizer):
    the, value, of, end = ids_of(tokenizer, " the", " value", " of", ".")
    return [
        DraftStep((), (the,)),
        DraftStep((value, of, the, end), (value, of, end)),  # two accepted, and the rest rejected
        DraftStep((), (of,)),
        DraftStep((the, value), (the, value, end)),  # all accepted
    ]


def test_a_step_knows_what_was_accepted_and_rejected():
    assert (DraftStep((5, 6, 7), (5, 6, 9)).num_accepted, DraftStep((5, 6, 7), (5, 6, 9)).rejected) == (2, (7,))
    assert (DraftStep((5, 6), (5, 6, 9)).num_accepted, DraftStep((5, 6), (5, 6, 9)).rejected) == (2, ())
    assert (DraftStep((5, 6), (9,)).num_accepted, DraftStep((5, 6), (9,)).rejected) == (0, (5, 6))
    assert DraftStep((5, 6, 5), (6,)).num_accepted == 0


def test_a_draft_in_which_the_text_ends_has_no_rejected_tokens():
    assert DraftStep((5, 6, 7), (5, 6)).rejected == ()


def test_the_picture_tells_each_draft_and_the_steps_that_are_saved(steps, tokenizer):
    picture = picture_of(steps, tokenizer.encode(PROMPT).ids, tokenizer)
    assert repr(picture).splitlines() == [
        "8 tokens in 4 steps, 8 steps without drafts; 4 of 6 drafted tokens accepted",
        "step 1: 4 drafted, 2 accepted, 3 tokens",
        "step 3: 2 drafted, 2 accepted, 3 tokens",
    ]
    assert picture.shown == 1, "the step that has both accepted and rejected tokens"
    assert "step 2: nothing drafted, 1 token" in picture.texts(2)
    assert {"3 steps", "5 steps"} <= set(picture.texts(2)) and {"4 steps", "8 steps"} <= set(picture.texts(3))


def test_spaces_line_ends_and_special_tokens_can_be_read(tokenizer):
    [line_end] = tokenizer.encode("\n").ids
    assert readable(tokenizer, line_end) == "⏎"
    assert readable(tokenizer, ids_of(tokenizer, " the")[0]) == "␣the"
    assert readable(tokenizer, tokenizer.token_to_id("<|endoftext|>")) == "<|endoftext|>"


class Scripted:
    """A queue of one sequence that gets the tokens 0, 1, 2, 0, 1, 2, ..., and drafts that the next ones are 7, 7."""

    name = "scripted"

    def __init__(self, model, **sizes):
        self.seqs = []

    @property
    def has_work(self):
        return any(not seq.finish_reason for seq in self.seqs)

    def add(self, seq):
        self.seqs.append(seq)

    def draft(self, seq, num_tokens):
        return [7, 7][:num_tokens]

    def step(self):
        [seq] = self.seqs
        made, left = len(seq.output_ids), seq.max_len - len(seq)
        draft = self.draft(seq, min(2, left - 1)) if 1 <= made < 4 else []  # at the end it drafts nothing
        for token in solution("19.2")(draft, [(made + i) % 3 for i in range(len(draft) + 1)]):
            seq.append(token)
        seq.finish_reason = "length" if len(seq) == seq.max_len else None


def test_drafts_are_recorded_step_by_step(tokenizer):
    picture = draw_drafts(Scripted, None, tokenizer, tokenizer.encode(PROMPT).ids, max_tokens=6)
    assert repr(picture).splitlines() == [
        "6 tokens in 6 steps, 6 steps without drafts; 0 of 6 drafted tokens accepted",
        *(f"step {number}: 2 drafted, 0 accepted, 1 token" for number in (1, 2, 3)),
    ]


def test_the_stages_drafts_are_recorded_and_its_tokens_are_those_without_drafts(model, tokenizer):
    prompt_ids = tokenizer.encode(REPEATING).ids
    params = SamplingParams(40, ignore_eos=True)
    seq = Sequence(prompt_ids, params)
    steps = record_drafts(Speculative, model, seq)
    [plain] = generate(OneKernel(model, num_blocks=8), [prompt_ids], params)
    assert [token for step in steps for token in step.tokens] == seq.output_ids == plain.output_ids
    assert any(step.is_mixed for step in steps) and len(steps) < 40
    assert all(len(step.tokens) == step.num_accepted + 1 for step in steps)


def test_a_draft_that_is_too_long_is_shown_as_far_as_the_stage_takes_it(model, tokenizer):
    stage_class = with_draft(Speculative, "MyDrafts", lambda token_ids, num_tokens: [5] * 20)
    steps = record_drafts(
        stage_class, model, Sequence(tokenizer.encode(PROMPT).ids, SamplingParams(8, ignore_eos=True))
    )
    assert {len(step.draft) for step in steps[1:4]} == {4}


def test_a_learners_function_drafts_in_the_place_of_the_stages(tokenizer):
    def my_draft(token_ids, num_tokens):
        token_ids.append(9)  # its own list
        return np.array([(token_ids[-2] + 1) % 3, 7])[:num_tokens]

    seq = Sequence([0, 2], SamplingParams(6))
    steps = record_drafts(with_draft(Scripted, "MyDrafts", my_draft), None, seq)
    assert seq.token_ids == [0, 2, 0, 1, 2, 0, 1, 2]
    assert steps == [
        DraftStep((), (0,)), DraftStep((1, 7), (1, 2)), DraftStep((0, 7), (0, 1)), DraftStep((), (2,)),
    ]  # fmt: skip
    assert {type(token) for step in steps for token in step.draft} == {int}


def test_a_stub_changes_nothing_and_a_stage_without_drafts_is_refused():
    def ngram_draft(token_ids, num_tokens, longest=4, shortest=2): ...

    unchanged = with_draft(Scripted, "MyDrafts", ngram_draft)
    assert unchanged.draft is Scripted.draft and unchanged.name == "MyDrafts"
    with pytest.raises(ValueError, match="stage_class must have a method `draft`, as stage 19 has, got s17_policies"):
        with_draft(Policies, "MyDrafts", ngram_draft)
