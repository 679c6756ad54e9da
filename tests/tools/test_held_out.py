"""Text that the bundled model was not trained on: nothing of it is in the training text, and it is drawn as told."""

from __future__ import annotations

import json

import pytest
import torch
from oracles import small_model

from roseinfer.reference import reference_logits
from tools.held_out import DRAWN, FILE, LENGTH, SHARED, UNSEEN, drawn_texts, runs
from tools.train_tiny import collect

MADE = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_file_has_what_the_tool_makes():
    assert len(MADE["drawn"]) == DRAWN and {len(text) for text in MADE["drawn"]} == {LENGTH + 1}
    assert len(MADE["unseen"]) == len(set(MADE["unseen"])) == UNSEEN


@pytest.mark.nightly
@pytest.mark.slow
def test_no_unseen_paragraph_shares_a_run_of_words_with_the_training_text():
    known = {run for document in collect() for paragraph in document.split("\n") for run in runs(paragraph)}
    assert not any(runs(paragraph) & known for paragraph in MADE["unseen"])


def test_a_run_is_so_many_words_in_a_row():
    words = "one Two, three four-five six seven"
    assert runs(words) == {
        ("one", "two", "three", "four", "five", "six"),
        ("two", "three", "four", "five", "six", "seven"),
    }
    assert all(len(run) == SHARED for run in runs(words)) and runs("too short") == set()


def test_texts_are_drawn_from_the_model_by_their_seed():
    model = small_model()
    texts = drawn_texts(model, first=5, number=3, length=8, seed=1)
    assert texts == drawn_texts(model, first=5, number=3, length=8, seed=1) != drawn_texts(model, 5, 3, 8, seed=2)
    assert all(text[0] == 5 and len(text) == 9 for text in texts) and texts[0] != texts[1]
    first = reference_logits(model, [5])[-1].softmax(-1)
    drawn = torch.tensor([text[1] for text in drawn_texts(model, 5, 200, 1, seed=3)]).bincount(minlength=len(first))
    likely = first.topk(5).indices
    assert drawn[likely].sum() / 200 == pytest.approx(float(first[likely].sum()), abs=0.12)
