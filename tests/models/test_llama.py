"""Llama, Qwen2 and Qwen3 against transformers, their configs and their checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from folders import assert_refused, edit_config, edit_tensors
from oracles import assert_logits_close, prompts_of, small_llama
from safetensors.torch import load_file, save_file

from roseinfer.models import Llama, empty_model, load_model, model_config, shape_of, to_hf
from roseinfer.models.hf import config_from_hf
from roseinfer.models.hf_llama import read_weights
from roseinfer.models.rope import LinearRope, Llama3Rope, Rope, Rotation, YarnRope, rope_from_hf
from roseinfer.reference import reference_generate, reference_logits

pytestmark = pytest.mark.slow


ARCHITECTURES = ["llama", "mistral", "qwen2", "qwen3"]
ROPES = {
    "theta": Rope(rope_theta=100.0),
    "linear": LinearRope(factor=3.0),
    "llama3": Llama3Rope(
        rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ),
    "yarn": YarnRope(factor=4.0, original_max_position_embeddings=64),
    "yarn_untruncated": YarnRope(rope_theta=100.0, factor=3.0, original_max_position_embeddings=64, truncate=False),
    "yarn_attention_factor": YarnRope(factor=4.0, original_max_position_embeddings=64, attention_factor=1.2),
    "yarn_mscale": YarnRope(factor=4.0, original_max_position_embeddings=64, mscale=2.0, mscale_all_dim=0.7),
}
LLAMA3_HF = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request) -> Llama:
    return small_llama(request.param)


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A small Qwen2 saved by transformers, as a user would have it."""
    return saved("qwen2", tmp_path / "model")


def assert_equals_transformers(model: Llama) -> None:
    hf = to_hf(model)
    for prompt in prompts_of([1, 13, 200], model.config.vocab_size):
        assert_logits_close(reference_logits(model, prompt), hf(torch.tensor([prompt])).logits[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_embeddings": True},
        {"tie_embeddings": False},
        {"num_kv_heads": 1},
        {"num_kv_heads": 4},
        {"num_layers": 1, "head_dim": 8, "norm_eps": 1e-3, "intermediate_size": 40},
    ],
    ids=["tied", "untied", "one_kv_head", "as_many_kv_heads", "other_sizes"],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_transformers(architecture, changes):
    assert_equals_transformers(small_llama(architecture, **changes))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_logits_with_attention_bias_equal_transformers(architecture):
    assert_equals_transformers(small_llama(architecture, qkv_bias=True, o_bias=True))


@pytest.mark.parametrize("name", ROPES)
def test_logits_with_scaled_rope_equal_transformers(name):
    model = small_llama("llama", rope=ROPES[name])
    assert_equals_transformers(model)
    [prompt] = prompts_of([200], model.config.vocab_size)
    plain = reference_logits(small_llama("llama"), prompt)
    assert (reference_logits(model, prompt) - plain).abs().max() > 0.1, "the test would not notice plain RoPE"


def test_positions_outside_the_table_are_an_error(model):
    ids = torch.tensor([1, 2])
    with pytest.raises(IndexError):
        model(ids, torch.tensor([0, model.config.max_model_len]), lambda layer, q, k, v: q)


def test_a_cast_rounds_cos_and_sin_but_not_the_frequencies():
    """bf16 frequencies would be off by up to 1 in 256: at position 1000 another angle altogether."""
    model = small_llama("llama", max_model_len=1024)
    positions = torch.arange(1024)
    exact_cos, exact_sin = model.rotation(positions, torch.float32)
    cos, sin = model.to(torch.bfloat16).rotation(positions, model.dtype)
    assert cos.dtype == sin.dtype == torch.bfloat16
    assert torch.equal(cos, exact_cos.bfloat16()) and torch.equal(sin, exact_sin.bfloat16())
    assert reference_logits(model, [1, 2, 3]).dtype == torch.bfloat16


def test_rotation_turns_pairs_by_position_times_frequency():
    rotation = Rotation(Rope(rope_theta=100.0), head_dim=4, length=8)  # frequencies 1 and 1 / 10
    cos, sin = rotation(torch.tensor([0, 3]), torch.float32)
    angles = torch.tensor([[0.0, 0.0], [3.0, 0.3]])
    torch.testing.assert_close(cos.view(2, 2), angles.cos())
    torch.testing.assert_close(sin[:, 0, 1], angles.sin())
    torch.testing.assert_close(sin[:, 0, 0], -angles.sin())


@pytest.mark.parametrize(
    ("tied", "max_shard_size"), [(True, "1GB"), (False, "40KB")], ids=["tied, one file", "untied, sharded"]
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_written_by_transformers_loads(architecture, tied, max_shard_size, tmp_path):
    saved = small_llama(architecture, tie_embeddings=tied, rope=ROPES["llama3"])
    to_hf(saved).save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_shard_size == "40KB")
    loaded = load_model(str(tmp_path))
    assert loaded.config == saved.config == model_config(str(tmp_path))
    weights = saved.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(w, weights[name]) for name, w in loaded.state_dict().items())
    assert not any(p.requires_grad for p in loaded.parameters()) and not loaded.training
    for dtype in (torch.float16, torch.bfloat16):
        model = load_model(str(tmp_path), dtype=dtype)
        assert model.dtype == dtype and reference_logits(model, [1, 2]).dtype == dtype


@pytest.mark.parametrize("beside", [True, False], ids=["beside its parts", "alone"])
def test_a_matrix_that_is_joined_already_is_refused(folder, beside):
    tensors = load_file(folder / "model.safetensors")
    parts = [f"model.layers.0.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    tensors["model.layers.0.self_attn.qkv_proj.weight"] = torch.cat([tensors[part] for part in parts])
    kept = tensors if beside else {name: tensor for name, tensor in tensors.items() if name not in parts}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert_refused(folder, "self_attn.qkv_proj.weight is not supported, only q_proj, k_proj, v_proj")


def test_a_copy_for_transformers_is_a_copy(model):
    before = [p.clone() for p in model.parameters()]
    with torch.no_grad():
        for p in to_hf(model).parameters():
            p.fill_(7)
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only 'silu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported, only False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ({"mlp_bias": True}, "mlp_bias=True is not supported, only False"),
        ({"pretraining_tp": 2}, "pretraining_tp=2 is not supported, only 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported, only 1.0"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic' is not supported, only default, "),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type='longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type='spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, r"required: \['factor'\]"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "parameters .*mrope_section.*allowed"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1.0}}, "factor must be a number above 0, got -1.0"),
        ({"num_key_value_heads": None}, "config.json lacks num_key_value_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3 must divide num_heads=4"),
        ({"hidden_size": None}, "config.json lacks hidden_size"),
        ({"head_dim": None, "hidden_size": 66}, "num_attention_heads=4 must divide hidden_size=66"),
        ({"head_dim": 15}, "head_dim=15 must be even"),
        ({"tie_word_embeddings": "yes"}, "tie_embeddings must be True or False, got 'yes'"),
        ({"tie_word_embeddings": False}, "1 weight is missing, first lm_head.weight"),
        ({"num_hidden_layers": 3}, "weights are missing, first layers.2"),
        ({"num_hidden_layers": 1}, "belong to no part of the model, first layers.1"),
        ({"num_attention_heads": 6, "num_key_value_heads": 1}, r"o_proj.weight has shape \(64, 64\), .* \(64, 96\)"),
        ({"model_type": "qwen3", "head_dim": 16}, "weights are missing, first layers.0.self_attn.k_norm"),
        ({"layer_types": "full_attention"}, "layer_types='full_attention' must be a list"),
        ({"layer_types": [["full_attention"]]}, r"layer_types has \['full_attention'\]"),
        ({"num_attention_heads": 0}, "config.json: num_attention_heads must be a positive integer, got 0"),
        ({"num_key_value_heads": 0}, "num_kv_heads must be a positive integer, got 0"),
        ({"head_dim": 0}, "head_dim must be a positive integer, got 0"),
        ({"rms_norm_eps": "1e-6"}, "norm_eps must be a number above 0, got '1e-6'"),
        ({"rope_parameters": "yarn"}, "rope_scaling or rope_parameters must be an object, got 'yarn'"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, r"rope_type=\['yarn'\] is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate must be True or False"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}}, "rope_theta=1.0: YaRN blends"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta must be a number above 0, got inf"),
        ({"model_type": "mixtral"}, "model_type='mixtral' is not supported, only 'gpt2', 'llama', 'mistral', 'qwen2'"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window must be a positive integer, got 0"),
        ({"model_type": "mistral", "layer_types": ["sliding_attention"] * 2}, "layer_types has 'sliding_attention'"),
    ],
)
def test_a_config_that_does_not_fit_is_named(folder, changes, message):
    edit_config(folder, **changes)
    assert_refused(folder, message)


WINDOWED = [
    ("llama", {"sliding_window": 4}),
    ("llama", {"sliding_window": 0}),
    ("llama", {"attention_chunk_size": 4}),
    ("llama", {"sliding_window": 4, "use_sliding_window": False}),
    ("llama", {"is_causal": False}),
    ("qwen2", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0, "layer_types": None}),
]
UNUSED = [
    ("llama", {"sliding_window": None}),
    ("llama", {"sliding_window": 4096}),
    ("llama", {"is_causal": True}),
    ("llama", {"attention_chunk_size": 10**6}),
    ("llama", {"sliding_window": 4, "layer_types": ["full_attention"] * 2}),
    ("qwen2", {"sliding_window": 4, "use_sliding_window": False}),
    ("qwen2", {"sliding_window": 4, "layer_types": None}),
    ("qwen3", {"attention_chunk_size": 4}),
    ("qwen3", {"sliding_window": 4}),
]


@pytest.mark.parametrize(("family", "changes"), WINDOWED + UNUSED, ids=str)
def test_a_window_is_refused_where_transformers_uses_it(tmp_path, family, changes):
    """In Llama, its KV cache does: from the token on that the window leaves out."""
    from transformers import AutoModelForCausalLM

    plain = small_llama(family)
    to_hf(plain).save_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    prompt = [3, 7, 11, 5, 9, 2, 8]
    hf = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = hf.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    [full] = reference_generate(plain, [prompt], 12)
    assert (theirs[0, len(prompt) :].tolist() == full) == ((family, changes) in UNUSED)
    if (family, changes) in UNUSED:
        assert reference_generate(load_model(str(tmp_path)), [prompt], 12) == [full]
    else:
        assert_refused(tmp_path, f"config.json: .*={list(changes.values())[0]!r}.*|use_sliding_window")


@pytest.mark.parametrize("window", [12, None, "left out"])
def test_mistral_answers_as_transformers_does_within_its_window(tmp_path, window):
    """A window of 12 leaves the first token out from the 13th on: the 13th token is the last that cannot tell."""
    from transformers import AutoModelForCausalLM

    to_hf(small_llama("mistral")).save_pretrained(tmp_path)
    edit_config(tmp_path, sliding_window=window)
    if window == "left out":
        config = json.loads((tmp_path / "config.json").read_text())
        del config["sliding_window"]
        (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_model(str(tmp_path))
    positions = small_llama("mistral").config.max_model_len
    assert ours.config.max_model_len == (12 if window == 12 else positions)
    prompt = [3, 7, 11, 5, 9, 2, 8]
    hf = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = hf.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    tokens, full = theirs[0].tolist(), prompt + reference_generate(small_llama("mistral"), [prompt], 12)[0]
    assert tokens[:13] == full[:13]
    assert (tokens == full) == (window != 12)


def test_qwen2_has_its_biases_whatever_its_config_says():
    hf = to_hf(small_llama("qwen2")).config.to_dict()
    for stated in (True, False):
        config = config_from_hf(hf | {"attention_bias": stated})
        assert config.qkv_bias and not config.o_bias


def test_qwen3_must_state_its_head_dim():
    """transformers would take the 128 of one particular model."""
    hf = to_hf(small_llama("qwen3")).config.to_dict()
    assert config_from_hf(hf).head_dim == 32
    with pytest.raises(ValueError, match="config.json lacks head_dim"):
        config_from_hf(hf | {"head_dim": None})


def test_a_checkpoint_that_lacks_a_part_or_has_one_of_another_width_is_named(folder):
    whole = (folder / "model.safetensors").read_bytes()
    edit_tensors(folder, lambda t: t.update({"model.layers.1.self_attn.k_proj.weight": torch.ones(32, 60)}))
    assert_refused(folder, r"layers.1.self_attn.k_proj.weight.* must be equally wide, .*\(32, 60\)")
    (folder / "model.safetensors").write_bytes(whole)
    edit_tensors(folder, lambda t: t.update({"model.layers.1.mlp.up_proj.bias": torch.ones(8)}))
    assert_refused(folder, "gate_proj.bias is missing, without which model.layers.1.mlp.up_proj.bias is of no use")
    (folder / "model.safetensors").write_bytes(whole)
    edit_tensors(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    assert_refused(folder, "up_proj.weight is missing, without which model.layers.1.mlp.gate_proj.weight is of no use")


@pytest.mark.parametrize(
    ("hf", "rope"),
    [
        ({}, Rope()),
        ({"rope_theta": 1e6, "rope_scaling": None}, Rope(rope_theta=1e6)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, Rope(rope_theta=5e5)),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}, LinearRope(factor=2.0)),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3_HF}, Llama3Rope(**LLAMA3_HF | {"rope_theta": 5e5})),
        ({"rope_parameters": LLAMA3_HF | {"rope_theta": 5e5}}, Llama3Rope(**LLAMA3_HF | {"rope_theta": 5e5})),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": None}},
            YarnRope(rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768),
        ),
        (
            {"rope_parameters": LLAMA3_HF | {"rope_theta": 5e5}, "original_max_position_embeddings": 4096},
            Llama3Rope(**LLAMA3_HF | {"rope_theta": 5e5, "original_max_position_embeddings": 4096}),
        ),
    ],
    ids=["none", "old_default", "default", "old_linear", "old_llama3", "llama3", "old_yarn", "length_outside"],
)
def test_both_spellings_of_rope_are_read(hf, rope):
    assert rope_from_hf({"max_position_embeddings": 32768} | hf) == rope


def test_a_rope_says_its_own_type():
    with pytest.raises(ValueError, match="rope_type='yarn' is not the type of a Rope"):
        Rope(rope_type="yarn")
    with pytest.raises(ValueError, match="rope_theta must be a number above 0, got 0"):
        Rope(rope_theta=0)


def test_a_config_is_recorded_as_json_and_shows_what_it_uses():
    config = shape_of("random:tiny-qwen3")
    assert json.loads(json.dumps(asdict(config)))["rope"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert "qk_norm=True" in repr(config) and "o_bias" not in repr(config)
    assert repr(shape_of("random:gpt2")).endswith("norm_eps=1e-05, eos_token_id=50256)")


def test_several_end_tokens_are_kept():
    config = to_hf(small_llama("llama", eos_token_id=(3, 5))).config
    assert config.eos_token_id == [3, 5]
    assert config_from_hf(config.to_dict()).eos_token_ids == (3, 5)
    assert shape_of("random:qwen2.5-7b").eos_token_ids == (151645,)
    assert shape_of("random:tiny-llama").eos_token_ids == ()


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("llama", {"o_bias": True}, "o_bias=True: transformers' llama cannot hold that, it would be False"),
        ("llama", {"qk_norm": True}, "qk_norm=True: transformers' llama cannot hold that"),
        ("qwen2", {"qkv_bias": False}, "qkv_bias=False: transformers' qwen2 cannot hold that"),
        ("llama", {"hidden_size": 66}, r"transformers' llama refuses .*66.* not a multiple of .*\(4\)"),
        ("qwen3", {"qk_norm": False}, "qk_norm=False: transformers' qwen3 cannot hold that"),
    ],
)
def test_what_transformers_cannot_hold_is_refused(architecture, changes, message):
    with pytest.raises(ValueError, match=message):
        to_hf(small_llama(architecture, **changes))


def test_a_family_without_rope_or_an_unknown_one_is_refused():
    config = shape_of("random:tiny-llama")
    with pytest.raises(ValueError, match="rope=None: architecture='llama' needs rotary positions"):
        empty_model(replace(config, rope=None))
    with pytest.raises(ValueError, match="architecture='mamba' is not supported, only gpt2, llama, mistral, qwen2"):
        empty_model(replace(config, architecture="mamba"))


def test_parts_of_other_types_lose_nothing_as_they_are_joined():
    config = shape_of("random:tiny-llama")
    parts = {f"model.layers.0.self_attn.{name}_proj.weight": torch.randn(4, 3) for name in "qkv"}
    parts["model.layers.0.self_attn.q_proj.weight"] = parts["model.layers.0.self_attn.q_proj.weight"].bfloat16()
    [(name, joined)] = read_weights(parts, config)
    assert name == "layers.0.self_attn.qkv_proj.weight" and torch.equal(joined, torch.cat(list(parts.values())))
    assert joined.dtype == torch.float32
