"""One thing under several names, as transformers takes it: a tied matrix in the file, an activation in config.json."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from folders import assert_refused, edit_config, edit_tensors
from oracles import assert_logits_close
from transformers import AutoModelForCausalLM
from transformers.activations import ACT2FN

from roseinfer.models import load_model
from roseinfer.models.hf import FAMILIES
from roseinfer.reference import reference_logits

EMBEDDING = {"gpt2": "transformer.wte.weight"} | dict.fromkeys(FAMILIES.keys() - {"gpt2"}, "model.embed_tokens.weight")
OWN = {"gpt2": torch.nn.GELU(approximate="tanh")} | dict.fromkeys(FAMILIES.keys() - {"gpt2"}, torch.nn.SiLU())
KEY = {"gpt2": "activation_function"} | dict.fromkeys(FAMILIES.keys() - {"gpt2"}, "hidden_act")
PROMPT = [1, 5, 3, 7]


def assert_answers_as_transformers(folder: Path) -> None:
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = hf(torch.tensor([PROMPT])).logits[0]
    assert_logits_close(reference_logits(load_model(str(folder)), PROMPT), theirs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("names", ["embedding", "output", "both"])
def test_a_tied_matrix_may_have_either_name(saved, tmp_path, family, names):
    folder, embedding = saved(family, tmp_path / "model"), EMBEDDING[family]
    wanted = load_model(str(folder)).state_dict()

    def rename(tensors):
        matrix = tensors.pop(embedding)
        names_of = {"embedding": [embedding], "output": ["lm_head.weight"], "both": [embedding, "lm_head.weight"]}
        tensors.update({name: matrix.clone() for name in names_of[names]})

    edit_tensors(folder, rename)
    found = load_model(str(folder)).state_dict()
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert_answers_as_transformers(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_matrix_of_its_own_is_used_or_refused(saved, tmp_path, family):
    folder, embedding = saved(family, tmp_path / "model"), EMBEDDING[family]
    for change in (lambda matrix: matrix[:-1].clone(), torch.neg):
        edit_tensors(folder, lambda t, change=change: t.update({"lm_head.weight": change(t[embedding])}))
        assert_refused(folder, "lm_head.weight is another: tie_word_embeddings=false uses it")
    edit_config(folder, tie_word_embeddings=False)
    assert_answers_as_transformers(folder)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gpt2", {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.1.attn.masked_bias": torch.ones(1)}),
        ("qwen2", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}),
    ],
    ids=["masks", "frequencies"],
)
def test_what_old_checkpoints_hold_besides_weights_is_passed_over(saved, tmp_path, family, more):
    folder = saved(family, tmp_path / "model")
    wanted = load_model(str(folder)).state_dict()
    edit_tensors(folder, lambda tensors: tensors.update(more))
    found = load_model(str(folder)).state_dict()
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_matrix_under_no_name_is_missing(saved, tmp_path, family):
    folder = saved(family, tmp_path / "model")
    edit_tensors(folder, lambda tensors: tensors.pop(EMBEDDING[family]))
    assert_refused(folder, f"1 weight is missing, first {EMBEDDING[family].split('.', 1)[1]}")


@pytest.mark.parametrize("name", sorted(ACT2FN.keys() - {"prelu", "xielu"}))  # these two have weights
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_activation_is_accepted_exactly_if_it_is_the_same_function(saved, tmp_path, family, name):
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    is_same = torch.allclose(ACT2FN[name](x), OWN[family](x), rtol=0, atol=1e-11)
    folder = saved(family, tmp_path / "model")
    edit_config(folder, **{KEY[family]: name})
    if is_same:
        assert_answers_as_transformers(folder)
    else:
        assert_refused(folder, f"{KEY[family]}={name!r} is not supported, only ")
    assert is_same == (name in FAMILIES[family].FIXED_SETTINGS[KEY[family]])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_that_transformers_does_not_have_is_refused(saved, tmp_path, family):
    folder = saved(family, tmp_path / "model")
    edit_config(folder, **{KEY[family]: "prelu"})
    first = FAMILIES[family].FIXED_SETTINGS[KEY[family]][0]
    assert_refused(folder, f"{KEY[family]}='prelu' is not supported, only '{first}', ")
