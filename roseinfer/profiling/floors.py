"""The floor: how fast one decode step could be on this machine, if it did only what it must.

A step must read every weight and every cached key and value once, and do its multiplications. The larger of
the two times bounds it: the roofline model (Williams, Waterman, Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 2009), applied to decoding as in zeux, "LLM inference
speed of light" (2024). Real steps also move activations, launch kernels and synchronise: none reaches it. A step
that starts many small operations is held up by neither reading nor arithmetic, but by the host that starts them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import nan
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from roseinfer.hardware import device_name
from roseinfer.kernels.onednn import pack, packed_linear, packs

from .clock import MOST_REPEATS, seconds_of_calls
from .facts import Facts, HasFacts

if TYPE_CHECKING:
    from roseinfer.models.config import ModelConfig


ARCHITECTURES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
READING, ARITHMETIC = "reading", "arithmetic"
PASSES_BUDGET_S = 0.0 if MOST_REPEATS in os.environ else 0.4  # where no time is looked at, one pass will do
MOST_PASSES = 50
MIB = 2**20
CACHE_SIZES = tuple(MIB << i for i in range(8))  # 1 to 128 MiB
CACHE_SHOWN = 8 * MIB  # about what a step of the bundled model reads


@dataclass(frozen=True)
class Machine(HasFacts):
    """Measured rates of one device.

    read_bytes_per_s: of what no cache holds; cached_reads: bytes that are read again and again -> their rate. samples:
    the rate of each pass, under the names of the two rates.
    """

    name: str
    device: str
    dtype: torch.dtype
    read_bytes_per_s: float
    flops_per_s: float
    samples: dict[str, tuple[float, ...]]
    cached_reads: Mapping[int, float] = field(default_factory=dict)

    def read_rate(self, nbytes: int) -> float:
        """Return the bytes per second of reading the same nbytes at every step: fewer may stay in a cache.

        Between two measured sizes the faster rate counts, so that a floor is never too high.
        """
        larger = [rate for size, rate in self.cached_reads.items() if 2 * size > nbytes]
        return max([self.read_bytes_per_s, *larger])

    def facts(self) -> Facts:
        import pandas as pd

        rows = [("read bandwidth, beyond any cache", f"{self.read_bytes_per_s / 1e9:,.1f} GB/s")]
        if self.cached_reads:
            again = f"read bandwidth, the same {CACHE_SHOWN // MIB} MiB again and again"
            rows.append((again, f"{self.read_rate(CACHE_SHOWN) / 1e9:,.1f} GB/s"))
        rows.append((f"matrix product, {_dtype_name(self.dtype)}", f"{self.flops_per_s / 1e9:,.0f} GFLOP/s"))
        return Facts(
            pd.DataFrame(rows, columns=["measured", "best pass"]),
            exact=["measured"],
            live=["best pass"],
            title="This machine",
            note=f"{self.name} ({self.device})",
        )


@dataclass(frozen=True)
class Floor(HasFacts):
    """Bytes and operations that one decode step needs; with a machine, also how long that takes at least.

    bound: "reading" or "arithmetic", whichever takes longer. Without a machine it is None, and seconds is NaN.
    """

    weight_bytes: int
    kv_bytes: int
    flops: int
    batch_size: int
    seconds: float = nan
    bound: str | None = None

    def facts(self) -> Facts:
        import pandas as pd

        rows = [
            ("weights, bytes", f"{self.weight_bytes:,}", True),
            ("keys and values, bytes", f"{self.kv_bytes:,}", True),
            ("floating-point operations", f"{self.flops:,}", True),
        ]
        if self.bound:
            rows += [
                ("at least, ms", f"{1e3 * self.seconds:,.3f}", False),
                ("at most, tokens/s", f"{self.batch_size / self.seconds:,.0f}", False),
                ("bound by", self.bound, False),
            ]
        frame = pd.DataFrame(rows, columns=["one decode step", "floor", "exact"])
        return Facts(
            frame,
            exact=["one decode step", "floor"],
            title=f"Floor of a decode step, batch {self.batch_size}",
            exact_rows=frame["exact"],
        )


def decode_floor(
    config: ModelConfig, context_lens: Sequence[int], dtype: torch.dtype, machine: Machine | None = None
) -> Floor:
    """Compute the least that a decode step of len(context_lens) sequences must move and compute (GPT-2, Llama family).

    context_lens[i]: how many tokens sequence i's new token attends to, itself included (len(seq) as decode begins).

    weight_bytes: each weight once. A token embedding that is also the lm_head counts once; of one that is not, a single
    row counts, since all sequences may have the same token. GPT-2's position embedding counts by its rows in use; RoPE
    has no weights, and its table of angles is left out. kv_bytes: K and V of the context_lens[i] - 1 cached tokens
    read, and those of the new one written. flops: 2 per matrix weight and sequence, and 4 * H * D * context_lens[i] per
    layer for attention (2 for q.k, 2 for p.v). Activations, bias additions, norms, rotations and softmax are left out:
    a floor may be too low, never too high.

    Raises ValueError for an architecture not in ARCHITECTURES, no sequence, or a context outside 1..max_model_len.
    """
    _check(config, "context_lens", context_lens)
    seqs, tokens = len(context_lens), sum(context_lens)
    terms = step_terms(config, dtype, positions=len(set(context_lens)))
    return _floor(terms, seqs, num_tokens=seqs, cached=tokens, pairs=tokens, machine=machine)


def prefill_floor(
    config: ModelConfig, prompt_lens: Sequence[int], dtype: torch.dtype, machine: Machine | None = None
) -> Floor:
    """Compute the least that prefilling these prompts in one forward must move and compute; see decode_floor.

    kv_bytes: K and V of every token written. flops: the output matrix for the last token of each prompt alone, and
    attention of each token to those before it and itself.

    Raises ValueError as decode_floor does.
    """
    _check(config, "prompt_lens", prompt_lens)
    seqs, tokens = len(prompt_lens), sum(prompt_lens)
    pairs = sum(length * (length + 1) // 2 for length in prompt_lens)
    terms = step_terms(config, dtype, positions=max(prompt_lens))
    return _floor(terms, seqs, num_tokens=tokens, cached=tokens, pairs=pairs, machine=machine)


@dataclass(frozen=True)
class StepTerms:
    """The parts of the least that a step must move and compute, whatever decodes and prompts are in it.

    weight_bytes: of a step. kv_bytes: of a token whose K and V are read or written. Operations: token_flops of a token,
    output_flops of the output matrix for a sequence, pair_flops of a token and one that it attends to, in all layers.
    """

    weight_bytes: int
    kv_bytes: int
    token_flops: int
    output_flops: int
    pair_flops: int

    def flops(self, num_seqs: int, num_tokens: int, pairs: int) -> int:
        """Count the operations of a step. pairs: of a token and one that it attends to."""
        return self.output_flops * num_seqs + self.token_flops * num_tokens + self.pair_flops * pairs


def step_terms(config: ModelConfig, dtype: torch.dtype, positions: int = 1) -> StepTerms:
    """Compute the parts of a step's floor; see decode_floor for what counts.

    positions: how many rows of GPT-2's position embedding are in use. Raises ValueError for an architecture that is not
    in ARCHITECTURES.
    """
    _check(config, "positions", [1])
    output = config.vocab_size * config.hidden_size
    rows = (positions if config.architecture == "gpt2" else 0) + (not config.tie_embeddings)
    return StepTerms(
        weight_bytes=(_matrix_weights(config) + _vector_weights(config) + rows * config.hidden_size) * dtype.itemsize,
        kv_bytes=2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize,
        token_flops=2 * (_matrix_weights(config) - output),
        output_flops=2 * output,
        pair_flops=4 * config.num_layers * config.num_heads * config.head_dim,
    )


def _check(config: ModelConfig, argument: str, lengths: Sequence[int]) -> None:
    if config.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture={config.architecture!r}: floors are known of {', '.join(ARCHITECTURES)}")
    if not lengths:
        raise ValueError(f"{argument} must name at least one sequence, got none")
    for length in lengths:
        if not 1 <= length <= config.max_model_len:
            raise ValueError(f"{argument} must lie in 1..{config.max_model_len} (max_model_len), got {length!r}")


def _floor(terms: StepTerms, num_seqs: int, num_tokens: int, cached: int, pairs: int, machine: Machine | None) -> Floor:
    """Make the floor of a step. cached: tokens whose K and V are read or written."""
    weights, kv, flops = terms.weight_bytes, terms.kv_bytes * cached, terms.flops(num_seqs, num_tokens, pairs)
    if machine is None:
        return Floor(weights, kv, flops, num_seqs)
    moving, computing = (weights + kv) / machine.read_rate(weights + kv), flops / machine.flops_per_s
    bound = READING if moving >= computing else ARITHMETIC
    return Floor(weights, kv, flops, num_seqs, max(moving, computing), bound)


def _matrix_weights(config: ModelConfig) -> int:
    """Count every weight that multiplies a token: q, k, v, output, the MLP's (GPT-2 has no gate), and the lm_head."""
    c, width, kv_width = config.hidden_size, *_attention_widths(config)
    mlp_matrices = 2 if config.architecture == "gpt2" else 3
    layer = c * (width + 2 * kv_width) + width * c + mlp_matrices * c * config.intermediate_size
    return config.num_layers * layer + config.vocab_size * c


def _vector_weights(config: ModelConfig) -> int:
    """Count the biases of those matrices (the lm_head has none), and the scale of each norm, in GPT-2 its shift too."""
    c, width, kv_width = config.hidden_size, *_attention_widths(config)
    if config.architecture == "gpt2":
        biases = (width + 2 * kv_width) + c + config.intermediate_size + c
        return config.num_layers * (biases + 4 * c) + 2 * c
    biases = config.qkv_bias * (width + 2 * kv_width) + config.o_bias * c
    return config.num_layers * (biases + 2 * c + config.qk_norm * 2 * config.head_dim) + c


def _attention_widths(config: ModelConfig) -> tuple[int, int]:
    return config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim


def measure_machine(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Machine:
    """Measure a device at `dtype`: read bandwidth in and beyond the caches, and the rate of linear layers.

    Each is the best of several passes. Measured once per process, device and dtype, in a second or two; on a busy
    machine all come out low. Raises ValueError for a dtype that is not floating point, and for a device that is neither
    the CPU nor an available CUDA device.
    """
    device = torch.device(device)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, got {dtype}")
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device must be 'cpu' or an available CUDA device, got {str(device)!r}")
    return _measure(str(device), dtype)


@cache
@torch.inference_mode()
def _measure(device: str, dtype: torch.dtype) -> Machine:
    far = 2**30 if device.startswith("cuda") else 2**28  # far larger than any cache
    reads = _read_rates(device, far, PASSES_BUDGET_S)
    products = _product_rates(device, dtype)
    if device == "cpu" and dtype.itemsize < torch.float32.itemsize:
        # Widened to float32 they have the same products, sooner where the CPU has no instructions for them.
        products += _measure(device, torch.float32).samples["flops_per_s"]
    return Machine(
        name=device_name(device),
        device=device,
        dtype=dtype,
        read_bytes_per_s=max(reads),
        flops_per_s=max(products),
        samples={"read_bytes_per_s": reads, "flops_per_s": products},
        cached_reads={size: max(_read_rates(device, size, PASSES_BUDGET_S / 10)) for size in CACHE_SIZES},
    )


def _read_rates(device: str, nbytes: int, budget: float) -> tuple[float, ...]:
    """Measure the bytes per second of summing one buffer over and over.

    The sums are in fp32 whatever the model's dtype: sums of other types may be bound by the adding.
    """
    # Ones, not zeros: pages that were never written share one. On a CPU in large pages, as weights are: see in_tiles.
    on_cpu = torch.device(device).type == "cpu"
    count = nbytes // 4
    buffer = torch.from_numpy(np.ones(count, np.float32)) if on_cpu else torch.ones(count, device=device)
    buffer.sum()  # warm-up: thread pools, and what fits goes into the cache
    return tuple(nbytes / seconds for seconds in passes(buffer.sum, device, budget))


def _product_rates(device: str, dtype: torch.dtype) -> tuple[float, ...]:
    """Measure the FLOPs per second of linear layers, at a decode step's sizes and at large square ones.

    Models multiply with linear layers: on a CPU, half-precision `a @ a` takes another path, and a far slower one. A
    decode step has a few rows on weights that a cache holds. The square ones are as large as lets one pass fit the
    budget: on a busy CPU every product waits once for its threads.
    """
    rates, width = [], 768
    for rows in (1, 8, 64):
        rates += _linear_rates(device, dtype, rows, width, PASSES_BUDGET_S / 20)
    size, largest = 512, 8192 if device.startswith("cuda") else 2048
    while True:
        rates += _linear_rates(device, dtype, size, size, PASSES_BUDGET_S / 4)
        if size == largest or 8 * 2 * size**3 / max(rates) > PASSES_BUDGET_S:
            return tuple(rates)
        size *= 2


def _linear_rates(device: str, dtype: torch.dtype, rows: int, width: int, budget: float) -> list[float]:
    """Measure rates with plain weights, and on a CPU also in the order that oneDNN multiplies fastest, if any."""
    # Random values: of equal ones a GPU needs less power, and is faster than a model could be.
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (torch.randn(n, width, device=device, generator=generator).to(dtype) for n in (rows, width))
    ways = [lambda: linear(x, weight), *_packed_product(x, weight)]
    for way in ways:
        way()  # warm-up: thread pools, kernel choice
    return [2 * rows * width**2 / seconds for way in ways for seconds in passes(way, device, budget)]


def _packed_product(x: Tensor, weight: Tensor) -> list[Callable[[], Tensor]]:
    """Return the product with the weights packed, in a list, or [] where oneDNN does not pack them."""
    if x.device.type != "cpu" or not packs(x.dtype):
        return []
    return [partial(packed_linear, x, pack(weight, len(x)))]


def passes(work: Callable[[], object], device: str, budget: float) -> list[float]:
    """Time each pass in seconds: at least 3, then as many as fit, since a neighbour's burst may spoil some.

    A budget of 0 gives one pass. On a GPU 10 are launched at once, so that it need not wait for the host between two.
    """
    where = torch.device(device)
    at_once = 10 if where.type == "cuda" else 1
    times = seconds_of_calls(work, where, max(3 if budget else 1, at_once))
    while sum(times) < budget and len(times) < MOST_PASSES:
        times += seconds_of_calls(work, where, at_once)
    return times


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
