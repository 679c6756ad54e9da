"""The script that made the bundled model: what it reads, what it feeds, and that two steps of it end in a model."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
import torch

from roseinfer.models import load_model, load_tokenizer
from roseinfer.paths import ROOT, TINY

PATH = ROOT / "tools" / "train_tiny.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_tiny", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("Return the number of\n    items in the list", "Return the number of items in the list."),
        ("* A list item that\n  says ``something`` useful.", "A list item that says something useful."),
        ("Raise *ValueError* when the value is wrong.", "Raise ValueError when the value is wrong."),
        (">>> print(1)\n1", None),
        ('if_stmt ::= "if" expression', None),
        ("Too short.", None),
        ("x = 1\n    y = 2\n        z = 3", None),
    ],
)
def test_prose_is_kept_and_unwrapped_and_code_is_not(script, block, text):
    assert script.clean_paragraph(block) == text


def test_windows_begin_with_a_paragraph_and_stay_in_the_position_table(script):
    paragraphs = [[i] * (i + 1) + [0] for i in range(1, 9)]
    x, positions = script.batch(paragraphs, torch.Generator().manual_seed(0), rows=64, length=20)
    assert x.shape == (64, 21) and positions.shape == (64, 20)
    assert all(row[: row.index(0)] == [row[0]] * (row[0] + 1) for row in x.tolist())  # whole from its first token on
    assert positions.min() == 0 and positions.max() < script.WHOLE[1]
    assert (positions[:, 0] == 0).any() and (positions[:, 0] > 0).any()


def test_the_card_repeats_the_record(script):
    record = json.loads((TINY / "training.json").read_text())
    card = (TINY / "README.md").read_text()
    for fact in (record["command"], f"--steps {record['steps']} --seed {record['seed']}", str(record["final_loss"])):
        assert fact in card
    assert len(record["loss_curve"]) >= 90 and record["loss_curve"][0][1] > 2 * record["final_loss"]
    assert len(re.findall(r"^\[", card, flags=re.MULTILINE)) == 2 * len(script.PROMPTS)


@pytest.mark.slow
def test_two_steps_end_in_a_model_that_loads(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "PROMPTS", ["Return"])
    monkeypatch.setattr(script, "SHORT", (2, 16))
    monkeypatch.setattr(script, "WHOLE", (1, 64))
    pages = ["Return the number of items in the list, or raise an error when the list is empty."] * 40
    monkeypatch.setattr(script, "collect", lambda: pages)
    monkeypatch.setattr(script, "VOCAB", 300)
    script.main(["--steps", "2", "--out", str(tmp_path)])
    model, tokenizer = load_model(str(tmp_path)), load_tokenizer(str(tmp_path))
    assert model.config.max_model_len == 64 and model.config.vocab_size == tokenizer.get_vocab_size() <= 300
    assert json.loads((tmp_path / "training.json").read_text())["steps"] == 2
    assert "--steps 2 --seed 0" in (tmp_path / "README.md").read_text() and (tmp_path / "loss.png").exists()
