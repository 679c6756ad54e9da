"""EngineConfig and the dry run: wrong fields refused, sizes against published counts and what a stage allocates."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch
from oracles import small_llama
from torch.utils._python_dispatch import TorchDispatchMode

from roseinfer.cli.main import main as roseinfer
from roseinfer.cli.main import parser
from roseinfer.display import Table
from roseinfer.engine import config as engine_config
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.weights import held_bytes, prepare_weights
from roseinfer.hardware import available_bytes
from roseinfer.models import GPT2, load_model, to_hf
from stages.s05_block_table import BlockTable

GPT2_SMALL = {"model": "random:gpt2", "num_blocks": 2048}
SMALL_RUN = "--model random:gpt2 --num-blocks 2048"
FIELDS = "model, num_blocks, block_size, max_num_seqs, max_model_len, dtype, quantization, device"
FLAGS = (
    "allowed: --model, --num-blocks, --block-size, --max-num-seqs, --max-model-len, --dtype, --quantization, --device"
)


@pytest.fixture
def no_memory_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_config, "available_bytes", lambda device: None)


# Fields


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("max_num_blocks", "num_blocks"),  # the field of the post's benchmark script
        ("num_gpu_blocks", "num_blocks"),
        ("blocksize", "block_size"),
        ("max_seqs", "max_num_seqs"),
        ("Dtype", "dtype"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest(wrong: str, nearest: str):
    with pytest.raises(ValueError) as caught:
        EngineConfig(model="tiny", **{wrong: 2048})
    assert str(caught.value) == f"EngineConfig has no argument {wrong!r} (nearest: {nearest}), allowed: {FIELDS}"


def test_a_field_that_is_near_to_none_lists_them_all():
    with pytest.raises(ValueError) as caught:
        EngineConfig(**GPT2_SMALL, xyz=1)
    assert str(caught.value) == f"EngineConfig has no argument 'xyz', allowed: {FIELDS}"


def test_replace_refuses_a_misspelt_field_too():
    config = EngineConfig(**GPT2_SMALL)
    assert replace(config, block_size=16).block_size == 16
    with pytest.raises(ValueError, match=r"no argument 'block_sizes' \(nearest: block_size\)"):
        replace(config, block_sizes=16)


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="^EngineConfig needs a value for num_blocks$"):
        EngineConfig(model="tiny")
    with pytest.raises(ValueError, match="^EngineConfig needs a value for model and num_blocks$"):
        EngineConfig()


def test_fields_are_given_by_name_and_stay():
    with pytest.raises(TypeError, match="positional"):
        EngineConfig("tiny", 8)
    config = EngineConfig(**GPT2_SMALL)
    with pytest.raises(FrozenInstanceError):
        config.num_blocks = 1
    assert not hasattr(config, "__dict__")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": ""}, "model must be a spec"),
        ({"model": None}, "model must be a spec .* got None"),
        ({"num_blocks": 0}, "num_blocks must be an integer of at least 1, got 0"),
        ({"num_blocks": True}, "num_blocks must be an integer of at least 1, got True"),
        ({"block_size": 16.0}, "block_size must be an integer of at least 1, got 16.0"),
        ({"max_num_seqs": "64"}, "max_num_seqs must be an integer of at least 1, got '64'"),
        ({"max_model_len": 0}, "max_model_len must be an integer of at least 1, got 0"),
        ({"dtype": "bf16"}, "dtype must be one of float32, float16, bfloat16, got 'bf16'"),
        ({"dtype": torch.float16}, "dtype must be one of .* got torch.float16"),
        ({"dtype": "int8"}, "dtype must be one of .*, got 'int8': 8-bit weights are quantization='int8'"),
        ({"quantization": "awq"}, "quantization must be one of None, 'int8', got 'awq'"),
        ({"quantization": "int8", "device": "cuda"}, "quantization='int8' runs on a CPU, and the model is on 'cuda'"),
        ({"block_size": 48, "device": "cuda"}, "block_size must be a power of two on a GPU, got 48"),
        ({"device": "gpu"}, "device='gpu' is not a device"),
        ({"device": 0}, "device must be a string .* got 0"),
    ],
    ids=lambda value: "-".join(f"{k}-{v}" for k, v in value.items()) if isinstance(value, dict) else "refused",
)
def test_wrong_values_are_refused(wrong: dict, message: str):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**{**GPT2_SMALL, **wrong})


def test_a_length_above_the_models_is_refused():
    with pytest.raises(ValueError, match="max_model_len=1025 is more positions .* allowed: at most 1024"):
        EngineConfig(**GPT2_SMALL, max_model_len=1025).sizes()
    assert EngineConfig(**GPT2_SMALL, max_model_len=1024).sizes().max_model_len == 1024


# Sizes


@pytest.mark.parametrize(
    ("model", "num_weights"),  # as published for GPT-2 small, Qwen2.5-0.5B and Qwen2.5-7B
    [("gpt2", 124_439_808), ("qwen2.5-0.5b", 494_032_768), ("qwen2.5-7b", 7_615_616_512)],
)
def test_weights_are_counted_once(model: str, num_weights: int):
    sizes = EngineConfig(model=f"random:{model}", num_blocks=1, dtype="float16").sizes()
    assert sizes.num_weights == num_weights
    assert sizes.weight_bytes == 2 * num_weights


@pytest.mark.parametrize("max_num_seqs, num_blocks, block_size", [(4, 8, 16), (1, 3, 100)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_are_what_a_stage_allocates(tiny: GPT2, dtype: str, max_num_seqs: int, num_blocks: int, block_size: int):
    settings = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": max_num_seqs}
    sizes = EngineConfig(model="tiny", dtype=dtype, **settings).sizes()
    weight_bytes = sum(p.to(getattr(torch, dtype)).nbytes for p in tiny.parameters())
    assert sizes.weight_bytes == weight_bytes
    stage = BlockTable(tiny, **settings)
    fp32_over_dtype = tiny.dtype.itemsize // getattr(torch, dtype).itemsize
    assert sizes.pool_bytes * fp32_over_dtype == stage.k_cache.nbytes + stage.v_cache.nbytes
    assert sizes.block_table_bytes == stage.device_buffer.nbytes
    assert sizes.total_bytes == weight_bytes + sizes.pool_bytes + sizes.block_table_bytes


def test_lengths_are_rounded_up_to_blocks():
    sizes = EngineConfig(model="random:gpt2", num_blocks=20, block_size=64, max_model_len=129).sizes()
    assert (sizes.max_blocks, sizes.longest_seqs_in_pool, sizes.pool_tokens) == (3, 6, 1280)
    assert EngineConfig(model="random:gpt2", num_blocks=2, max_model_len=129).sizes().longest_seqs_in_pool == 0


def test_grouped_heads_need_less():
    sizes = EngineConfig(model="random:qwen2.5-7b", num_blocks=1, dtype="bfloat16").sizes()
    assert sizes.kv_bytes_per_token == 2 * 28 * 4 * 128 * 2
    assert sizes.block_bytes == sizes.pool_bytes == 64 * sizes.kv_bytes_per_token


@pytest.mark.parametrize("model", ["tiny", "llama"])  # with a tied output matrix, and with one of its own
def test_matrices_in_8_bits_are_what_the_engine_holds(tmp_path, model: str):
    if model == "llama":
        llama = to_hf(small_llama("llama"))
        llama.save_pretrained(tmp_path)
        assert not llama.config.tie_word_embeddings
    spec = "tiny" if model == "tiny" else str(tmp_path)
    loaded = load_model(spec)
    prepare_weights(loaded, "int8")
    sizes = EngineConfig(model=spec, num_blocks=1, quantization="int8").sizes()
    assert sizes.weight_bytes == held_bytes(loaded)
    how = sizes.facts().df["how"][0]
    assert how == f"{sizes.num_weights - sizes.num_in_int8:,} x 4 + {sizes.int8_bytes:,} for matrices in 8 bits"


# The table


def test_the_table_is_exact():
    sizes = EngineConfig(**GPT2_SMALL, dtype="bfloat16", device="cuda").sizes()
    assert repr(Table.of(sizes)).splitlines() == [
        "random:gpt2 in bfloat16 on cuda",
        "what                         size  unit             MiB  how",
        "------------------  -------------  ---------  ---------  -------------------------------------------",
        "weights               248,879,616  bytes        237.350  124,439,808 x 2",
        "K and V of a token         36,864  bytes          0.035  2 (K, V) x 12 layers x 12 KV heads x 64 x 2",
        "block                   2,359,296  bytes          2.250  64 tokens",
        "pool                4,831,838,208  bytes      4,608.000  2,048 blocks",
        "tokens in the pool        131,072  tokens                2,048 blocks x 64",
        "longest sequences             128  sequences             of 1,024 tokens: 2,048 // 16 blocks",
        "block tables               49,152  bytes          0.047  [12 layers, 64 sequences, 16 blocks] x 4",
        "total               5,080,766,976  bytes      4,845.397  weights + pool + block tables",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spare", "verdict"),
    [
        (0, "yes: cuda here has 5,080,766,976 bytes free, 0 more than the total"),
        (-1, "no: cuda here has 5,080,766,975 bytes free, 1 fewer than the total"),
    ],
    ids=["just", "not"],
)
def test_whether_it_fits_is_live(monkeypatch: pytest.MonkeyPatch, spare: int, verdict: str):
    sizes = EngineConfig(**GPT2_SMALL, dtype="bfloat16", device="cuda").sizes()
    monkeypatch.setattr(engine_config, "available_bytes", lambda device: sizes.total_bytes + spare)
    views = Table.of(sizes)._repr_mimebundle_()
    assert verdict in views["text/html"]
    assert "fits" not in views["text/plain"] and views["text/plain"] == repr(Table.of(sizes))
    assert sizes.fit() == (spare, verdict)


def test_nothing_is_said_of_a_device_that_is_not_here(no_memory_known: None):
    sizes = EngineConfig(**GPT2_SMALL).sizes()
    assert sizes.fit() is None
    assert "fits" not in Table.of(sizes).to_html()


def test_the_memory_of_a_missing_gpu_is_unknown():
    assert available_bytes(f"cuda:{torch.cuda.device_count()}") is None
    assert available_bytes("meta") is None


# Nothing is allocated


class RealBytes(TorchDispatchMode):
    """Adds up the bytes of all tensors off the meta device that an op returns."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                self.total += tensor.nbytes
        return out


def test_no_weight_and_no_pool_is_allocated():
    config = EngineConfig(model="random:qwen2.5-7b", num_blocks=10**6, max_num_seqs=1024)
    with RealBytes() as real:
        torch.ones(10)
        assert real.total == 40  # it does see what is allocated
        sizes = config.sizes()
    assert sizes.total_bytes > 10**12
    assert real.total < 2**20


def test_neither_transformers_nor_a_gpu_is_asked_for():
    code = (
        "import sys, torch\n"
        "from roseinfer.engine.config import EngineConfig\n"
        "total = EngineConfig(model='random:gpt2', num_blocks=2048, device='cuda').sizes().total_bytes\n"
        "print(total, 'transformers' in sys.modules, torch.cuda.is_initialized())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["10161484800", "False", "False"]


# The command


def main(arguments: list[str]) -> int:
    return roseinfer(["dry-run", *arguments])


def test_every_field_has_a_flag():
    values = {"model": "random:gpt2", "num_blocks": 3, "block_size": 16, "max_num_seqs": 2, "max_model_len": 99,
              "dtype": "float16", "quantization": "int8", "device": "cuda:1"}  # fmt: skip
    assert list(values) == [field.name for field in fields(EngineConfig)]
    line = [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    given = parser().parse_args(["dry-run", *line])
    assert {name: getattr(given, name) for name in values} == values


def test_the_command_prints_the_table(capsys, no_memory_known: None):
    assert main([*SMALL_RUN.split(), "--max-model-len", "65", "--dtype", "bfloat16"]) == 0
    config = EngineConfig(**GPT2_SMALL, max_model_len=65, dtype="bfloat16")
    assert capsys.readouterr() == (f"{Table.of(config.sizes())}\n", "")


def test_the_command_says_when_it_does_not_fit(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_config, "available_bytes", lambda device: 10**9)
    assert main(SMALL_RUN.split()) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "fits: no: cpu here has 1,000,000,000 bytes free, 9,161,484,800 fewer than the total"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-num-blocks 2048", f"unknown argument '--max-num-blocks' (nearest: --num-blocks), {FLAGS}"),
        ("--model tiny --num-block=2048", f"unknown argument '--num-block' (nearest: --num-blocks), {FLAGS}"),
        ("--model tiny", "EngineConfig needs a value for num_blocks"),
        (f"{SMALL_RUN} --block-size 0", "block_size must be an integer of at least 1, got 0"),
        (
            f"{SMALL_RUN} --max-model-len 4096",
            "max_model_len=4096 is more positions than random:gpt2 has, allowed: at most 1024",
        ),
        ("--model ./nowhere --num-blocks 1", "no such folder: './nowhere'"),
        ("--model tiny --num-blocks many", "--num-blocks: must be an integer, got 'many'"),
    ],
    ids=["misspelt", "shortened", "missing", "zero", "too-long", "no-folder", "no-integer"],
)
def test_a_bad_argument_is_one_line_and_exit_2(capsys, arguments: str, message: str):
    assert main(arguments.split()) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_one_of_a_thing_is_no_plural():
    sizes = EngineConfig(model="tiny", num_blocks=1, block_size=1, max_num_seqs=1, max_model_len=1).sizes()
    how = sizes.facts().df["how"].tolist()
    assert "1 token" in how and "1 block x 1" in how and "of 1 token: 1 // 1 block" in how
    assert any("1 sequence, 1 block]" in text for text in how)


def test_what_fits_is_what_is_free(monkeypatch: pytest.MonkeyPatch):
    """Not what is built in: others use it too."""
    monkeypatch.setattr("roseinfer.hardware.cpu_memory", lambda: 10**15)
    free = available_bytes("cpu")
    fit = EngineConfig(model="random:gpt2", num_blocks=10**9).sizes().fit()
    assert free is not None and free < 10**13 and fit[0] < 0 and "bytes free" in fit[1]
