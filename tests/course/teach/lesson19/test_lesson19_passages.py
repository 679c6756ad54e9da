"""Prompts that the bundled model repeats."""

from __future__ import annotations

import pytest
from oracles import prompts_of

from course.teach.lesson19.passages import passages_of, repeating_prompts, steps_with_drafts
from roseinfer.models import GPT2, load_tokenizer
from roseinfer.reference import reference_generate
from roseinfer.sequence import Sequence


@pytest.mark.slow
def test_prompts_are_passages_that_end_as_they_begin_and_are_repeated(tiny: GPT2):
    tokenizer = load_tokenizer("tiny")
    passages = passages_of(4, 40, seed=0)
    assert all(len(passage) == 40 and tokenizer.decode(passage)[0].isupper() for passage in passages)
    prompts = repeating_prompts(tiny, 3, 0, 192, 32)
    assert [len(prompt) for prompt in prompts] == [192] * 3 and all(p[184:] == p[:8] for p in prompts)
    assert repeating_prompts(tiny, 2) == repeating_prompts(tiny, 2) != repeating_prompts(tiny, 2, seed=1)
    seq = Sequence(prompts[0])
    seq.token_ids += reference_generate(tiny, prompts[:1], 32)[0]
    assert steps_with_drafts(seq) < 24


def test_steps_with_drafts_of_a_made_text():
    seq = Sequence([1, 2, 3, 4, 5, 6, 1, 2])
    seq.token_ids += [3, 4, 5, 6, 1, 9]  # four drafts hold, and so does the choice after them; then one without
    assert steps_with_drafts(seq) == 2
    [text] = prompts_of((30,), 97)
    assert steps_with_drafts(Sequence(text)) == 0
