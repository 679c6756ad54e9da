"""prepare_weights: the same tokens, fewer bytes, nothing held twice."""

from __future__ import annotations

import re
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course.contract.small_models import prompts_of, small_llama, small_model
from roseinfer.models import load_model, load_tokenizer, weights
from roseinfer.models.linear import Int4Linear, Int8Linear, MatrixInTiles, TiledLinear
from roseinfer.models.weights import held_bytes, prepare_weights, prepared_copy, weight_bytes
from roseinfer.profiling.floors import decode_floor
from roseinfer.reference import reference_logits

MODELS = {
    "tiny": lambda: load_model("tiny"),
    "gpt2": small_model,
    "llama": lambda: small_llama("llama"),
    "qwen2": lambda: small_llama("qwen2"),
    "untied": lambda: small_llama("qwen3", tie_embeddings=False),
}
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
TEXT = "The with statement is used to wrap the execution of a block with methods defined by a context manager. " * 3


def linears(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, (nn.Linear, MatrixInTiles))]


@pytest.mark.parametrize("name", MODELS)
def test_rearranged_and_plain_logits_agree_for_one_row_and_for_many(name):
    plain, prepared = MODELS[name](), MODELS[name]()
    prepare_weights(prepared)
    for length in (1, 2, 16, 70, 190):
        [prompt] = prompts_of((length,), plain.config.vocab_size)
        torch.testing.assert_close(
            reference_logits(prepared, prompt), reference_logits(plain, prompt), rtol=1e-3, atol=1e-3
        )


@pytest.mark.skipif(not LARGE_PAGES.exists(), reason="this system has no large pages")
@pytest.mark.parametrize("layout", [TiledLinear, Int8Linear])
def test_a_large_matrix_lies_in_large_pages(layout):
    weight = layout(torch.zeros(8192, 1024), None).weight
    middle = weight.data_ptr() + weight.nbytes // 2  # its first page may be another's
    maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    for described, flags in zip(maps, maps[1:], strict=False):
        first, last = (int(at, 16) for at in re.search(r"^([0-9a-f]+)-([0-9a-f]+) ", described, re.MULTILINE).groups())
        if first <= middle < last:
            assert "hg" in flags.splitlines()[0].split()  # "huge page advise flag", proc(5)
            return
    pytest.fail("no mapping has that address")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("quantization", "most"), [(None, 0.01), ("int8", 0.04), ("int4", 2.0)])
def test_the_text_of_tiny_hardly_changes(dtype, quantization, most):
    """KL of the next token's distribution, in nats a token; a uniform guess is more than 3 away. A model as small as
    this one has few weights that could make up for a rounded one: 4 bits tell."""
    token_ids = load_tokenizer("tiny").encode(TEXT).ids
    exact = reference_logits(load_model("tiny"), token_ids).log_softmax(-1)
    model = load_model("tiny", dtype=dtype)
    prepare_weights(model, quantization)
    logits = reference_logits(model, token_ids)
    assert logits.dtype == dtype
    kl = F.kl_div(logits.float().log_softmax(-1), exact, log_target=True, reduction="batchmean")
    assert kl < most


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_gelu_is_part_of_the_product_and_runs_once(quantization):
    model = load_model("tiny")
    prepare_weights(model, quantization)
    assert all(block.mlp.c_fc.gelu and isinstance(block.mlp.act, nn.Identity) for block in model.h)
    assert not any(block.mlp.c_proj.gelu or block.attn.c_attn.gelu for block in model.h) and not model.lm_head.gelu


@pytest.mark.parametrize(
    ("name", "quantization"),
    [*((name, quantization) for name in MODELS for quantization in (None, "int8")), ("tiny", "int4")],
)
def test_nothing_is_held_twice(name, quantization):
    """Each original is gone when the next matrix is rearranged, so memory never has more than one in two layouts."""
    model = MODELS[name]()
    layout = {None: TiledLinear, "int8": Int8Linear, "int4": Int4Linear}[quantization]
    originals = [weakref.ref(module.weight) for module in linears(model)]
    alive = []

    class Watched(layout):
        def __init__(self, weight, bias):
            alive.append(sum(original() is not None for original in originals))
            super().__init__(weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, layout.__name__, Watched)
        prepare_weights(model, quantization)
    tied = model.config.tie_embeddings
    assert alive == [*range(len(originals), 0, -1), *([0] if tied else [])]
    assert not any(original() is not None for original in originals)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_a_plain_model_are_those_of_the_floor(name):
    """The floor also counts the rows of the embedding tables that a step looks up."""
    model = MODELS[name]()
    looked_up = 1 if model.config.architecture == "gpt2" else int(not model.config.tie_embeddings)
    floor = decode_floor(model.config, [1], torch.float32).weight_bytes
    assert weight_bytes(model) == floor - looked_up * model.config.hidden_size * 4
    assert held_bytes(model) == sum(p.nbytes for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.float32, "int8"),
        (torch.bfloat16, "int8"),
        (torch.float32, "int4"),
    ],
)
def test_bytes_of_every_layout(dtype, quantization):
    config = load_model("tiny").config
    c, layers, vocab, positions = config.hidden_size, config.num_layers, config.vocab_size, config.max_model_len
    assert (c, layers, vocab) == (192, 4, 2_048), "multiples of 64: nothing is padded"
    matrices = layers * 12 * c * c + vocab * c
    biases, norms = layers * 9 * c, layers * 4 * c + 2 * c
    bytes_of_matrices = {
        None: dtype.itemsize * matrices,
        "int8": matrices + 4 * (layers * 9 * c + vocab),  # a scale for each row
        "int4": matrices // 2 + 2 * (matrices // 64),
    }[quantization]
    expected = bytes_of_matrices + 4 * biases + dtype.itemsize * norms
    model = load_model("tiny", dtype=dtype)
    before = held_bytes(model)
    prepare_weights(model, quantization)
    assert weight_bytes(model) == expected
    # An output matrix that is rearranged is no longer the table that ids are looked up in.
    assert held_bytes(model) == expected + (vocab * c + positions * c) * dtype.itemsize
    assert before == (matrices + biases + norms + positions * c) * dtype.itemsize


def test_float16_keeps_its_rows():
    model = load_model("tiny", dtype=torch.float16)
    prepare_weights(model)
    assert all(type(module) is nn.Linear for module in linears(model)) and model.lm_head is None


@pytest.mark.parametrize("value", ["int2", "INT8", "", 8, True])
def test_an_unknown_quantization(value):
    with pytest.raises(ValueError) as error:
        prepare_weights(small_model(), value)
    assert str(error.value) == f"quantization must be one of int8, int4, got {value!r}"


def test_4_bits_want_whole_groups_and_leave_the_model_as_it_was():
    model = small_model()
    with pytest.raises(
        ValueError, match="^quantization='int4' needs matrices whose width is a multiple of 64, got 32$"
    ):
        prepare_weights(model, "int4")
    assert all(type(module) is nn.Linear for module in linears(model)) and model.lm_head is None
    with pytest.raises(ValueError, match="a multiple of 64, got 33$"):
        Int4Linear(torch.randn(64, 33), None)


def test_a_model_is_prepared_once():
    model = small_model()
    prepare_weights(model, "int8")
    with pytest.raises(ValueError, match="prepared before"):
        prepare_weights(model)


def test_a_gpu_keeps_its_rows_and_refuses_fewer_bits():
    model = small_model().to("meta")  # stands for any device that is not the CPU
    prepare_weights(model)
    assert all(type(module) is nn.Linear for module in linears(model)) and model.lm_head is None
    for name in ("int8", "int4"):
        with pytest.raises(ValueError, match=f"quantization='{name}' runs on a CPU, and the model is on 'meta'"):
            prepare_weights(model, name)


def test_a_prepared_copy_leaves_the_model_as_it_was(tiny):
    before = {name: (p.data_ptr(), p.clone()) for name, p in tiny.named_parameters()}
    copy = prepared_copy(tiny)
    assert any(isinstance(module, MatrixInTiles) for module in copy.modules())
    assert copy.token_embedding.weight.data_ptr() == tiny.token_embedding.weight.data_ptr()
    after = dict(tiny.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[n].data_ptr() == at and torch.equal(after[n], values) for n, (at, values) in before.items())


@pytest.mark.parametrize("layer", [Int8Linear, Int4Linear])
def test_a_matrix_is_quantized_piece_by_piece(layer):
    """The output matrix of a large vocabulary is the largest of all: no copy of it in float32 is made on the way."""
    weight = torch.randn(50_000, 64)
    tracemalloc.start()  # of numpy's arrays alone
    try:
        made = layer(weight, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < peak - made.weight.nbytes < weight.nbytes / 4
