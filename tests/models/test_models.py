"""GPT-2 against transformers, and every way in which loading can go wrong: one clear error each."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from folders import assert_refused, edit_tensors
from oracles import assert_logits_close, prompts_of
from safetensors.torch import load_file, save_file

from roseinfer.hardware import is_here
from roseinfer.models import (
    GPT2,
    ModelLoadError,
    empty_model,
    load_model,
    load_tokenizer,
    model_config,
    shape_of,
    to_hf,
)
from roseinfer.models.hf import config_from_hf
from roseinfer.paths import TINY
from roseinfer.reference import reference_generate, reference_logits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fixture", ["small", "tiny", pytest.param("gpt2_shape", marks=pytest.mark.nightly)])
def test_logits_equal_transformers(fixture, request):
    model = request.getfixturevalue(fixture)
    hf = to_hf(model)
    for prompt in prompts_of([1, 13, 90], model.config.vocab_size):
        assert_logits_close(reference_logits(model, prompt), hf(torch.tensor([prompt])).logits[0])


def test_bundled_model_loads_in_transformers_unchanged_and_agrees(tiny):
    from transformers import AutoTokenizer, GPT2LMHeadModel

    hf = GPT2LMHeadModel.from_pretrained(TINY, dtype=torch.float32)
    text = "Return a new list"
    ids = load_tokenizer("tiny").encode(text).ids
    assert AutoTokenizer.from_pretrained(TINY)(text)["input_ids"] == ids
    out = hf.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert out[0, len(ids) :].tolist() == reference_generate(tiny, [ids], 24)[0]


def test_bundled_tokenizer_round_trips_and_the_model_is_small():
    tokenizer = load_tokenizer("tiny")
    text = "def f(x):\n    return {'é': x}  # naïve — ☃\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == load_model("tiny").config.vocab_size
    assert sum(path.stat().st_size for path in TINY.iterdir() if path.suffix != ".png") <= 8_000_000


def test_random_gpt2_has_the_shape_of_gpt2_small():
    shape = shape_of("random:gpt2")
    assert sum(p.numel() for p in empty_model(shape).parameters()) == 124_439_808
    assert shape == config_from_hf(
        {
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "eos_token_id": 50256,
        }
    )


def test_random_weights_are_the_same_every_time_and_in_every_dtype():
    model, again = load_model("random:tiny-qwen2"), load_model("random:tiny-qwen2")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(p.requires_grad for p in again.parameters()) and not again.training
    exact = model.state_dict()
    rounded = load_model("random:tiny-qwen2", dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(rounded[name], w.bfloat16()) for name, w in exact.items())
    assert exact["layers.0.self_attn.qkv_proj.bias"].eq(0).all() and exact["norm.weight"].eq(1).all()
    assert 0.018 < exact["layers.1.mlp.gate_up_proj.weight"].std() < 0.022


def test_model_config_is_the_loaded_model_s_config_and_reads_no_weights(folder, tiny):
    assert model_config("tiny") == tiny.config
    assert model_config("random:gpt2") == shape_of("random:gpt2")
    expected = load_model(str(folder)).config
    (folder / "model.safetensors").unlink()
    assert model_config(str(folder)) == expected
    with pytest.raises(ModelLoadError, match="unknown shape 'random:gpt3'"):
        model_config("random:gpt3")


def test_an_empty_model_has_the_parameters_of_the_loaded_one_and_no_memory(tiny):
    empty = empty_model(tiny.config)
    assert isinstance(empty, GPT2) and empty.device.type == "meta"
    shapes = {name: p.shape for name, p in tiny.named_parameters()}
    assert {name: p.shape for name, p in empty.named_parameters()} == shapes


def test_shards_and_names_without_the_prefix_load_too(folder, small):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, part in halves.items():
        save_file({name.removeprefix("transformer."): tensors[name] for name in part}, folder / file)
    weight_map = {n.removeprefix("transformer."): file for file, part in halves.items() for n in part}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert reference_generate(load_model(str(folder)), [[5]], 6) == reference_generate(small, [[5]], 6)
    (folder / "b.safetensors").unlink()
    assert_refused(folder, "b.safetensors does not exist")


def test_a_matrix_with_more_dimensions_is_refused(folder):
    edit_tensors(folder, lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": torch.ones(1, 32, 128)}))
    assert_refused(folder, r"weight h.0.mlp.c_fc.weight has shape \(1, 32, 128\), config.json says \(")


def test_weights_that_are_there_twice_are_refused(folder):
    edit_tensors(folder, lambda t: t.update({"ln_f.bias": t["transformer.ln_f.bias"] + 1}))
    assert_refused(folder, "weight ln_f.bias is there twice")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float8_e4m3fn])
def test_a_quantised_checkpoint_is_known_by_a_dtype(folder, dtype):
    """Whatever config.json says: AutoGPTQ writes a file of its own."""
    edit_tensors(folder, lambda t: t.update({"transformer.ln_f.qweight": torch.ones(32).to(dtype)}))
    instead = "load the model that it was made from, with quantization='int8' or 'int4'"
    assert_refused(folder, rf"weight transformer.ln_f.qweight is {dtype}, .*a quantised checkpoint .*, {instead}$")


def shard(folder: Path, *shards: dict[str, torch.Tensor]) -> None:
    for number, tensors in enumerate(shards):
        save_file(tensors, folder / f"{number}.safetensors")
    weight_map = {name: f"{number}.safetensors" for number, tensors in enumerate(shards) for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_stale_index_beside_the_whole_file_is_not_read(folder, small):
    """As in transformers, which looks for model.safetensors first."""
    old = {name: tensor + 1 for name, tensor in load_file(folder / "model.safetensors").items()}
    shard(folder, old)
    assert reference_generate(load_model(str(folder)), [[5]], 6) == reference_generate(small, [[5]], 6)


def test_a_weight_in_two_shards_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shard(folder, tensors, {"transformer.ln_f.bias": tensors["transformer.ln_f.bias"] + 1})
    assert_refused(folder, "1.safetensors: weight transformer.ln_f.bias is in another shard")


@pytest.mark.parametrize("index", [{}, {"weight_map": None}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}, [], "x"])
def test_an_index_that_is_none_is_named(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_refused(folder, r"index.json(: weight_map must be an object of| must hold an object)")


def test_broken_files_are_named(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:4], b"", b"not a checkpoint"):
        weights.write_bytes(broken)
        assert_refused(folder, "model.safetensors is truncated or not a safetensors file")
    weights.unlink()
    assert_refused(folder, "model.safetensors does not exist")
    (folder / "config.json").write_text("{")
    assert_refused(folder, "config.json is not valid JSON")
    shutil.rmtree(folder)
    assert_refused(folder, "no such folder")


def test_wrong_arguments_are_named(folder, tmp_path):
    assert_refused(tmp_path, "has no model: neither config.json nor a GGUF file")
    with pytest.raises(ModelLoadError, match="is a file: give a .gguf file, or the folder"):
        load_model(str(folder / "config.json"))
    with pytest.raises(ModelLoadError, match="'random:gpt3', allowed: random:gpt2, random:llama-7b, random:qwen"):
        load_model("random:gpt3")
    with pytest.raises(ModelLoadError, match="dtype=torch.int8 is not supported"):
        load_model("tiny", dtype=torch.int8)
    with pytest.raises(ModelLoadError, match="device='gpu' is not a device"):
        load_model("tiny", device="gpu")
    with pytest.raises(ModelLoadError, match="has random weights and no tokenizer"):
        load_tokenizer("random:gpt2")
    with pytest.raises(ModelLoadError, match="tokenizer.json does not exist"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "meta", "xpu", "cpu:1"])
def test_a_device_that_is_not_here_is_one_clear_line(monkeypatch, device):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(ModelLoadError, match=f"device='{device}': not on this machine, which has: cpu"):
        load_model("tiny", device=device)


@pytest.mark.parametrize(
    ("device", "here"), [("cuda", True), ("cuda:1", True), ("cuda:2", False), ("cpu:0", True), ("meta", False)]
)
def test_which_devices_are_here(monkeypatch, device, here):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert is_here(torch.device(device)) == here


@pytest.mark.parametrize("spec", ["gpt2", "openai-community/gpt2"])
def test_a_hub_id_without_a_network_says_what_works(spec, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ModelLoadError, match="the hub cannot be reached; 'smollm2', 'tiny', 'random:gpt2', local folders and"
    ):
        load_model(spec)


def test_a_hub_model_loads_from_the_local_cache(folder, monkeypatch):
    """The real path after a download: snapshot_download hands back a folder."""
    asked = {}

    def snapshot(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert load_model("someone/small").config.num_layers == 2
    assert asked["repo_id"] == "someone/small"
    assert {"*.safetensors", "generation_config.json"} < set(asked["allow_patterns"])
    assert model_config("someone/small").num_layers == 2
    assert asked["allow_patterns"] == ["config.json", "generation_config.json"]


def test_a_hub_id_of_gguf_files_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda spec, **options: str(tmp_path / "not made"))
    with pytest.raises(
        ModelLoadError, match="^'someone/small-GGUF' on the hub has no config.json: of GGUF files, down"
    ):
        load_model("someone/small-GGUF")


def test_a_folder_that_cannot_be_read(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.listdir", refuse)
    assert_refused(folder, "cannot be read: Permission denied")


def test_neither_folder_nor_hub_id():
    with pytest.raises(ModelLoadError, match="neither a local folder nor a hub id"):
        load_model("not a model")


def test_grouped_heads_have_no_hf_twin(grouped):
    with pytest.raises(ValueError, match="num_kv_heads=2"):
        to_hf(grouped)
