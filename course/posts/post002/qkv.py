"""Post 002: q, k and v from one matrix product: the engine's layers beside a model with separate weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.bench.interleave import interleaved
from roseinfer.models import Model, load_model, model_config, to_hf
from roseinfer.models.linear import MatrixInTiles
from roseinfer.models.weights import layout_of, prepared_copy
from roseinfer.profiling.clock import device_clock, seconds_of
from roseinfer.stage import PromptAttention

from ..report.content import judged, times_here
from ..report.setting import Setting
from ..report.template import Values

MODELS = ("tiny", "random:tiny-llama")  # GPT-2's architecture, and the post's
APART = "random:tiny-llama"  # transformers keeps its q, k and v apart
REPEATS = 5
QUICK_SIZE = 256


def qkv_section(about: Mapping[str, Any], setting: Setting) -> Values:
    models = {spec: load_model(spec, device=setting.device) for spec in MODELS}
    counts = {f"the engine, {spec}": engine_products(prepared_copy(model)) for spec, model in models.items()}
    counts[f"transformers, {APART}"] = hf_products(models[APART])
    rows = about["prefill_batch_size"]
    size = QUICK_SIZE if setting.quick else model_config("random:llama-7b").hidden_size
    return {
        "facts": judged(
            "002", {f"products for q, k and v in a layer, {name}": qkv for name, (qkv, _) in counts.items()}
        ),
        "times": times_here(
            {f"{name}, {rows} rows, {size:,} columns": seconds for name, seconds in race(size, rows, setting).items()}
        ),
        "rows": [[name, qkv, layer] for name, (qkv, layer) in counts.items()],
    }


@torch.inference_mode()
def engine_products(model: Model) -> tuple[int, int]:
    """Count the matrix products of the engine in one forward: before the first attention, and in a layer."""
    attention = PromptAttention()
    before_attention: list[int] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before_attention.append(len(called))
        return attention(layer, q, k, v)

    token_ids = torch.zeros(1, dtype=torch.int64, device=model.device)
    with calls_of(model) as called:
        model(token_ids, torch.zeros_like(token_ids), attend)
    return before_attention[0], len(called) // model.config.num_layers


@torch.inference_mode()
def hf_products(model: Model) -> tuple[int, int]:
    """Count the products of transformers' model: before the first layer's attention output, and in a layer."""
    hf = to_hf(model)
    with calls_of(hf.model) as called:
        hf.model(torch.zeros(1, 1, dtype=torch.int64, device=model.device))
    before_output = next(i for i, name in enumerate(called) if name.endswith("o_proj"))
    return before_output, len(called) // model.config.num_layers


@contextmanager
def calls_of(model: nn.Module) -> Iterator[list[str]]:
    """Collect the names of the matrices that the model multiplies in the body, in that order."""
    called: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    hooks = [
        module.register_forward_hook(noting(name))
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, MatrixInTiles))
    ]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def race(size: int, rows: int, setting: Setting) -> dict[str, float]:
    """Time three products of [rows, size] with [size, size], and one with [size, 3 size], in turn; median seconds."""
    dtype = getattr(torch, setting.dtype)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3 * size, size, generator=generator).to(setting.device, dtype)
    x = torch.randn(rows, size, generator=generator).to(setting.device, dtype)
    joined, apart = product(weight), [product(part) for part in weight.chunk(3)]
    now = device_clock(setting.device)
    taken = interleaved(
        {
            "q, k and v joined": lambda: seconds_of(lambda: joined(x), now),
            "q, k and v apart": lambda: seconds_of(lambda: [each(x) for each in apart], now),
        },
        REPEATS,
        warmup=1,
    )
    return {name: median(seconds) for name, seconds in taken.items()}


def product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Make the product in the layout that the engine has on this device."""
    layout = layout_of(weight.dtype) if weight.device.type == "cpu" else None
    return layout(weight, None) if layout else lambda x: x @ weight.T
