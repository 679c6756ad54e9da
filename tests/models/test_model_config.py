"""What a folder's config says: sizes, end tokens, and what does not fit is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from folders import assert_refused, edit_config

from roseinfer.generate import generate
from roseinfer.models import load_model, model_config, shape_of, to_hf
from roseinfer.models.hf import config_from_hf
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from stages import LADDER


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_config_that_is_no_object_is_named(folder, name):
    for text, message in (("[]", "must hold an object, got list"), ("[" * 10**5, "is not valid JSON"), ("{", "JSON")):
        (folder / name).write_text(text)
        assert_refused(folder, f"{name} .*{message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type='bert' is not supported, only 'gpt2', 'llama', 'mistral', 'qwen2'"),
        ({"activation_function": "relu"}, "activation_function='relu' is not supported, only 'gelu_new'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ({"n_embd": None}, "config.json lacks n_embd"),
        ({"n_head": 5}, "n_head=5 must divide n_embd=32"),
        ({"n_layer": 3}, "weights are missing, first h.2"),
        ({"n_layer": 1}, "belong to no part of the model, first h.1"),
        ({"n_embd": 64}, r"has shape \(.*\), config.json says"),
        ({"n_layer": "two"}, "config.json: n_layer must be a positive integer, got 'two'"),
        ({"n_head": 0}, "config.json: n_head must be a positive integer, got 0"),
        ({"n_embd": "32"}, "config.json: n_embd must be a positive integer, got '32'"),
        ({"n_inner": 0}, "intermediate_size must be a positive integer, got 0"),
        ({"n_positions": True}, "config.json: n_positions must be a positive integer, got True"),
        ({"vocab_size": 10**12}, "vocab_size must be a positive integer of at most 2,147,483,647, got 1000000000000"),
        ({"n_layer": 99999999}, "config.json: n_layer must be a positive integer of at most 1,000, got 99999999"),
        ({"layer_norm_epsilon": None}, "norm_eps must be a number above 0, got None"),
        ({"layer_norm_epsilon": float("inf")}, "norm_eps must be a number above 0, got inf"),
        ({"model_type": ["gpt2"]}, r"model_type=\['gpt2'\] is not supported"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config=\{'bits': 4\}: a quantised checkpoint is not"),
        ({"sliding_window": 4}, "sliding_window=4 is not supported, only null or at least n_positions=192"),
        ({"is_causal": False}, "is_causal=False is not supported, only True"),
        ({"num_attention_heads": 2}, "num_attention_heads=2 contradicts n_head=4"),
        ({"max_position_embeddings": 64}, "max_position_embeddings=64 contradicts n_positions=192"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types has 'sliding_attention', which is not supported"),
    ],
)
def test_a_config_that_does_not_fit_is_named(folder, changes, message):
    edit_config(folder, **changes)
    assert_refused(folder, message)


@pytest.mark.parametrize("eos", ["3", -1, True, 1.5, [3, None], [[3]], {"id": 3}])
def test_end_tokens_that_are_none_are_named(folder, eos):
    (folder / "generation_config.json").unlink()
    edit_config(folder, eos_token_id=eos)
    assert_refused(folder, "eos_token_id must be a token id, a tuple of them or None, got")


@pytest.mark.parametrize(("eos", "held"), [([3, 5], (3, 5)), ([3], 3), ([], None), (3, 3), (None, None)])
def test_end_tokens_may_be_a_list(folder, eos, held):
    (folder / "generation_config.json").unlink()
    edit_config(folder, eos_token_id=eos)
    config = load_model(str(folder)).config
    assert config.eos_token_id == held and hash(config) == hash(model_config(str(folder)))
    assert config_from_hf(to_hf(load_model(str(folder))).config.to_dict()) == config


NO_FILE = "no file"


@pytest.mark.parametrize(
    ("in_config", "in_generation_config"),
    [
        ("late", NO_FILE),
        (["late", "soon"], NO_FILE),
        ("absent", NO_FILE),
        (None, NO_FILE),
        ("late", "soon"),
        ("late", ["late", "soon"]),
        (None, ["soon"]),
        ("soon", "late"),
        ("soon", "absent"),
        ("soon", None),
    ],
)
def test_greedy_text_ends_where_transformers_ends_it(folder, in_config, in_generation_config):
    from transformers import AutoModelForCausalLM

    prompt, max_tokens = [1, 2, 3], 6
    [text] = reference_generate(load_model(str(folder)), [prompt], max_tokens)
    ids = {"soon": text[1], "late": text[3]}
    assert text.index(ids["soon"]) == 1 and text.index(ids["late"]) == 3

    def write(name: str, eos: object, data: dict) -> None:
        data.pop("eos_token_id", None)
        named = [ids[each] for each in eos] if isinstance(eos, list) else ids.get(eos)
        (folder / name).write_text(json.dumps(data | ({} if eos == "absent" else {"eos_token_id": named})))

    write("config.json", in_config, json.loads((folder / "config.json").read_text()))
    if in_generation_config == NO_FILE:
        (folder / "generation_config.json").unlink()
    else:
        write("generation_config.json", in_generation_config, {})

    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = hf.generate(torch.tensor([prompt]), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
    stage = LADDER[0](load_model(str(folder)), num_blocks=8)
    [seq] = generate(stage, [prompt], SamplingParams(max_tokens=max_tokens))
    assert seq.token_ids == expected[0].tolist()


@pytest.mark.parametrize("field", ["vocab_size", "num_layers", "head_dim", "max_model_len"])
def test_config_sizes_are_positive_integers(field):
    for wrong in (0, -1, 2.0):
        with pytest.raises(ValueError, match=f"{field} must be a positive integer, got {wrong}"):
            replace(shape_of("random:gpt2"), **{field: wrong})
