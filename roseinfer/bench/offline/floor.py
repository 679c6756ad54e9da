"""The least that a whole run must move and compute: its prefill, and each of its decode steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain

import torch

from roseinfer.models import ModelConfig
from roseinfer.models.linear import Int8Linear
from roseinfer.profiling import Floor, Machine, decode_floor, measure_machine, prefill_floor
from roseinfer.profiling.floors import passes

from ..settings import QUANTIZED

PRODUCT_SIZES = (512, 1024, 2048)
BUDGET_S = 0.2


def run_floor(
    config: ModelConfig,
    machine: Machine,
    batch_size: int,
    prompt_len: int,
    max_tokens: int,
    weights: torch.dtype,
    kv_cache: torch.dtype,
) -> float:
    """Compute the least seconds from the prompts to max_tokens new tokens of each.

    weights, kv_cache: the dtypes of the matrices, and of K and V. The scales of quantised weights are left out: a floor
    may be too low, never too high.
    """
    prompts = [prompt_len] * batch_size
    prefill = prefill_floor(config, prompts, weights), prefill_floor(config, prompts, kv_cache)
    steps = (
        (decode_floor(config, context_lens, weights), decode_floor(config, context_lens, kv_cache))
        for context_lens in ([prompt_len + step] * batch_size for step in range(1, max_tokens))
    )
    return sum(_seconds(of_weights, of_cache, machine, weights) for of_weights, of_cache in chain([prefill], steps))


def _seconds(of_weights: Floor, of_cache: Floor, machine: Machine, weights: torch.dtype) -> float:
    # An itemsize is a whole number: torch.int4's is 1.
    per_byte = 2 if weights == torch.int4 else 1  # type: ignore[attr-defined]
    least = of_weights.weight_bytes // per_byte + of_cache.kv_bytes
    return max(least / machine.read_rate(least), of_weights.flops / machine.flops_per_s)


@cache
def machine_for(device: str, precision: str) -> Machine:
    """Measure the machine as `measure_machine` does; for quantised weights, with the rate of 8-bit integer products."""
    if precision not in QUANTIZED:
        return measure_machine(device, getattr(torch, precision))
    machine = measure_machine(device, torch.float32)
    rates = tuple(rate for size in PRODUCT_SIZES for rate in _int8_rates(size, device))
    return replace(machine, dtype=torch.int8, flops_per_s=max(rates), samples={**machine.samples, "flops_per_s": rates})


def _int8_rates(size: int, device: str) -> list[float]:
    """Measure PyTorch's product of integers, and on a CPU also the engine's, which rounds one side on the way."""
    square = torch.ones(size, size, dtype=torch.int8, device=device)
    ways = [lambda: torch._int_mm(square, square)]
    if device == "cpu":
        x, linear = square.float(), Int8Linear(square.float(), None)
        ways.append(lambda: linear(x))
    for way in ways:
        way()  # warm-up: thread pools, and what is compiled first
    return [2 * size**3 / seconds for way in ways for seconds in passes(way, device, BUDGET_S / 2)]
