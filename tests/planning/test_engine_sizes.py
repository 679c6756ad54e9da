"""EngineSizes: against published counts, and against all that an engine keeps."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from fresh_python import printed_by
from gguf_writing import write_gguf
from numba.core.dispatcher import Dispatcher
from oracles import small_llama, small_model
from torch.utils._python_dispatch import TorchDispatchMode

from roseinfer.display import Table
from roseinfer.graphs.tensors import memory_of
from roseinfer.hardware import available_bytes
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2, load_model, to_hf
from roseinfer.models.weights import held_bytes, prepare_weights
from roseinfer.planning import sizes as engine_sizes
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow


GPT2_SMALL = {"model": "random:gpt2", "num_blocks": 2048}


@pytest.mark.parametrize(
    ("model", "num_weights"),  # as published for GPT-2 small, Qwen2.5-0.5B and Qwen2.5-7B
    [("gpt2", 124_439_808), ("qwen2.5-0.5b", 494_032_768), ("qwen2.5-7b", 7_615_616_512), ("llama-7b", 6_738_415_616)],
)
def test_weights_are_counted_once(model: str, num_weights: int):
    sizes = PlannedEngine(model=f"random:{model}", num_blocks=1, dtype="float16").sizes()
    assert sizes.num_weights == num_weights
    assert sizes.weight_bytes == 2 * num_weights


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tied.gguf, whose matrices lie in blocks, and the table that is the output matrix too."""
    folder = tmp_path_factory.mktemp("stored")
    write_gguf(load_model("random:tiny-qwen2"), folder / "tied.gguf", "Q8_0")
    return folder


SETTINGS = {"max_num_seqs": 4, "block_size": 16, "max_model_len": 100}


@pytest.mark.parametrize(
    ("model", "options", "num_blocks"),
    [
        ("tiny", {}, 8),
        ("tiny", {"dtype": "bfloat16", "max_num_seqs": 1, "block_size": 100, "max_model_len": None}, 3),
        ("tiny", {"quantization": "int8"}, 1),
        ("tiny", {"quantization": "int4"}, 1),
        ("tiny", {"async_scheduling": True}, 8),
        ("random:tiny-qwen2", {}, 8),  # a tied output matrix and rotary positions
        ("random:tiny-llama", {"dtype": "float16"}, 8),
        ("tiny", {"speculative": {"method": "ngram", "num_tokens": 9}}, 8),
        ("tiny", {"speculative": {"method": "draft_model", "model": "tiny", "quantization": "int8"}}, 8),
        ("random:tiny-llama", {"speculative": {"method": "draft_model", "model": "random:tiny-llama"}}, 8),
        ("tied.gguf", {}, 8),  # matrices in the blocks of a file
        ("tied.gguf", {"dtype": "float32", "speculative": {"method": "draft_model", "model": "tied.gguf"}}, 8),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_sizes_are_all_that_an_engine_keeps(stored: Path, monkeypatch, model: str, options: dict, num_blocks: int):
    monkeypatch.chdir(stored)
    given = SETTINGS | options
    sizes = PlannedEngine(model=model, num_blocks=num_blocks, **given).sizes()
    llm = LLM(model, device="cpu", num_kvcache_blocks=num_blocks, **given)
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, temperature=1), use_tqdm=False)  # makes what is made late
    runner = llm.engine.runner
    assert sizes.weight_bytes == held_bytes(llm.model)
    assert sizes.pool_bytes == llm.engine.pool.memory.nbytes
    assert sizes.attended_bytes == runner.attended.nbytes
    assert sizes.block_table_bytes == llm.engine.blocks.table.ids.nbytes
    assert sizes.total_bytes == kept_bytes(llm)


def kept_bytes(*roots: object) -> int:
    """Bytes of all tensors and arrays that are reached from the roots; shared memory counts once."""
    sizes: dict[int, int] = {}
    seen, left = set(), list(roots)
    while left:
        x = left.pop()
        if id(x) in seen or isinstance(x, (type, ModuleType, FunctionType, Dispatcher)):  # code, compiled or not
            continue
        seen.add(id(x))
        if isinstance(x, torch.Tensor):
            is_open = x.layout == torch.strided  # a library's own layout does not tell how it is stored
            sizes[memory_of(x)] = x.untyped_storage().nbytes() if is_open else x.nbytes
        elif isinstance(x, np.ndarray):
            if x.base is None:
                sizes[x.ctypes.data] = x.nbytes
            left.append(x.base)
        else:
            left += gc.get_referents(x)
    return sum(sizes.values())


def test_what_an_engine_keeps_is_found(tiny: GPT2):
    views, array = torch.zeros(8), np.zeros(3)
    assert kept_bytes({"a": [views[:2], views[2:].numpy()], "b": (array[1:], partial(print, array))}) == 32 + 24
    assert kept_bytes(tiny) == sum(p.nbytes for p in tiny.parameters())


def test_on_a_gpu_the_host_keeps_the_block_table():
    here, there = (PlannedEngine(model="random:tiny-llama", num_blocks=8, device=d).sizes() for d in ("cpu", "cuda"))
    assert here.block_table_bytes == there.block_table_bytes > 0 == there.address_bytes
    on_the_host = here.block_table_bytes + here.address_bytes + here.weight_bytes - there.weight_bytes
    on_the_host += here.input_bytes - there.input_bytes
    assert here.total_bytes - there.total_bytes == on_the_host


def test_lengths_are_rounded_up_to_blocks():
    sizes = PlannedEngine(model="random:gpt2", num_blocks=20, block_size=64, max_model_len=129).sizes()
    assert (sizes.max_blocks, sizes.longest_seqs_in_pool, sizes.pool_tokens) == (3, 6, 1280)
    assert PlannedEngine(model="random:gpt2", num_blocks=2, max_model_len=129).sizes().longest_seqs_in_pool == 0


# With a tied output matrix, and with one of its own
@pytest.mark.parametrize(("model", "quantization"), [("tiny", "int8"), ("llama", "int8"), ("tiny", "int4")])
def test_quantized_matrices_are_what_the_engine_holds(tmp_path, model: str, quantization: str):
    if model == "llama":
        llama = to_hf(small_llama("llama"))
        llama.save_pretrained(tmp_path)
        assert not llama.config.tie_word_embeddings
    spec = "tiny" if model == "tiny" else str(tmp_path)
    loaded = load_model(spec)
    prepare_weights(loaded, quantization)
    sizes = PlannedEngine(model=spec, num_blocks=1, quantization=quantization).sizes()
    assert sizes.weight_bytes == held_bytes(loaded)
    how = sizes.facts().df["how"][0]
    matrices = f"{sizes.layout_bytes:,} for matrices in {quantization[-1]} bits"
    assert how == f"{sizes.num_weights - sizes.num_in_layout:,} x 4 + {matrices}"


def test_4_bits_want_whole_groups(tmp_path):
    to_hf(small_model()).save_pretrained(tmp_path)
    planned = PlannedEngine(model=str(tmp_path), num_blocks=1, quantization="int4")
    with pytest.raises(ValueError, match="quantization='int4' needs matrices whose width is a multiple of 64, got 32$"):
        planned.sizes()


# The table


def test_the_table_is_exact():
    sizes = PlannedEngine(**GPT2_SMALL, dtype="bfloat16", device="cuda").sizes()
    assert repr(Table.of(sizes)).splitlines() == [
        "random:gpt2 in bfloat16 on cuda",
        "what                         size  unit             MiB  how",
        "------------------  -------------  ---------  ---------  --------------------------------------------",
        "weights               248,879,616  bytes        237.350  124,439,808 x 2",
        "K and V of a token         36,864  bytes          0.035  2 (K, V) x 12 layers x 12 KV heads x 64 x 2",
        "block                   2,359,296  bytes          2.250  64 tokens",
        "pool                4,834,197,504  bytes      4,610.250  2,048 blocks + 1 dummy block",
        "tokens in the pool        131,072  tokens                2,048 blocks x 64",
        "longest sequences             128  sequences             of 1,024 tokens: 2,048 // 16 blocks",
        "inputs                     28,928  bytes          0.028  1,024 tokens, 64 sequences of 16 blocks",
        "attention's result      1,572,864  bytes          1.500  1,024 tokens x 12 heads x 64 x 2",
        "block table                 4,096  bytes          0.004  [64 sequences, 16 blocks] x 4, on the host",
        "total               5,084,678,912  bytes      4,849.128  weights + pool + inputs + attention's result",
    ]


@pytest.mark.parametrize(
    ("spare", "verdict"),
    [
        (0, "yes: cuda here has 5,084,678,912 bytes free, 0 more than the total"),
        (-1, "no: cuda here has 5,084,678,911 bytes free, 1 fewer than the total"),
    ],
    ids=["just", "not"],
)
def test_whether_it_fits_is_live(monkeypatch: pytest.MonkeyPatch, spare: int, verdict: str):
    sizes = PlannedEngine(**GPT2_SMALL, dtype="bfloat16", device="cuda").sizes()
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: sizes.total_bytes + spare)
    views = Table.of(sizes)._repr_mimebundle_()
    assert verdict in views["text/html"]
    assert "fits" not in views["text/plain"] and views["text/plain"] == repr(Table.of(sizes))
    assert sizes.fit() == (spare, verdict)


def test_nothing_is_said_of_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: None)
    sizes = PlannedEngine(**GPT2_SMALL).sizes()
    assert sizes.fit() is None
    assert "fits" not in Table.of(sizes).to_html()


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
    config = PlannedEngine(model="random:qwen2.5-7b", num_blocks=10**6, max_num_seqs=1024)
    with RealBytes() as real:
        torch.ones(10)
        assert real.total == 40  # it does see what is allocated
        sizes = config.sizes()
    assert sizes.total_bytes > 10**12
    assert real.total < 2**20


def test_no_heavy_library_and_no_gpu_is_asked_for():
    code = (
        "import os, sys, torch\n"
        "os.dup2(1, 2)  # nothing is said on stderr\n"
        "import roseinfer.profiling\n"
        "from roseinfer.planning.sizes import PlannedEngine\n"
        "total = PlannedEngine(model='random:gpt2', num_blocks=2048, device='cuda').sizes().total_bytes\n"
        "heavy = {'transformers', 'duckdb', 'pandas', 'matplotlib'} & sys.modules.keys()\n"
        "print(total, heavy, torch.cuda.is_initialized())"
    )
    assert printed_by(code).split() == ["10169328896", "set()", "False"]


def test_what_fits_is_what_is_free(monkeypatch: pytest.MonkeyPatch):
    """Not what is built in: others use it too."""
    monkeypatch.setattr("roseinfer.hardware.cpu_memory", lambda: 10**15)
    free = available_bytes("cpu")
    fit = PlannedEngine(model="random:gpt2", num_blocks=10**9).sizes().fit()
    assert free is not None and free < 10**13 and fit[0] < 0 and "bytes free" in fit[1]
