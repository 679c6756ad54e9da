"""The least that a whole run must move and compute: its prefill, and each of its decode steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain
from math import prod

import torch

from roseinfer.models import ModelConfig
from roseinfer.models.gguf_file import GgufFile
from roseinfer.models.gguf_path import gguf_path
from roseinfer.models.linear import Int8Linear
from roseinfer.profiling import Floor, Machine, decode_floor, measure_machine, prefill_floor
from roseinfer.profiling.floors import passes

from ..settings import QUANTIZED, STORED

PRODUCT_SIZES = (512, 1024, 2048)
BUDGET_S = 0.2


def run_floor(
    config: ModelConfig,
    machine: Machine,
    batch_size: int,
    prompt_len: int,
    max_tokens: int,
    value_bytes: float,
    kv_cache: torch.dtype,
) -> float:
    """Compute the least seconds from the prompts to max_tokens new tokens of each.

    value_bytes: of a value of the weights, see bytes_of_value. kv_cache: the dtype of K and V. The scales of weights
    that are quantised here are left out: a floor may be too low, never too high.
    """
    prefill = prefill_floor(config, [prompt_len] * batch_size, kv_cache)
    steps = (decode_floor(config, [prompt_len + step] * batch_size, kv_cache) for step in range(1, max_tokens))
    share = value_bytes / kv_cache.itemsize
    return sum(_seconds(floor, machine, share) for floor in chain([prefill], steps))


def _seconds(floor: Floor, machine: Machine, share: float) -> float:
    least = round(floor.weight_bytes * share) + floor.kv_bytes
    return max(least / machine.read_rate(least), floor.flops / machine.flops_per_s)


def bytes_of_value(precision: str, spec: str) -> float:
    """Return the bytes that a value of the weights takes in a precision of the settings.

    spec: the model, whose GGUF file has as many as its matrices have on average.
    """
    if precision != STORED:
        return {"int8": 1, "int4": 0.5}.get(precision) or getattr(torch, precision).itemsize
    path = gguf_path(spec)
    assert path, "the setting was checked"
    stored = GgufFile(path).stored
    unread = "token_embd.weight" if "output.weight" in stored else None
    matrices = [tensor for name, tensor in stored.items() if len(tensor.shape) == 2 and name != unread]
    return sum(tensor.nbytes for tensor in matrices) / sum(prod(tensor.shape) for tensor in matrices)


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
