"""Checkers of lesson 12: the bytes of a step's weights, matrices and activations in 8 bits, a layout in 16.

12.4 is in four_bits_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from course.contract.small_models import small_llama, small_model
from roseinfer.models import Model, empty_model
from roseinfer.profiling.reachable import arrays_of, tensors_of
from roseinfer.reference import reference_logits
from roseinfer.stage import Stage

from ..exercises.drawn import Comparison, Expected, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.stage_checks import require_stage
from ..exercises.tensor_checks import named_tensors, require_unchanged
from ..exercises.wrong import Wrong
from .four_bits_checks import four_bits_comparison

GROUP = 64  # values of x that share a scale


# 12.1


def gpt2_bytes(
    num_layers: int, width: int, vocab_size: int, bits: int, *, outputs: int = 1, scale_bytes: int = 4
) -> int:
    """Count the bytes of GPT-2's matrices; the four of a layer together have 9 rows for each value of its width."""
    weights = 12 * num_layers * width**2 + outputs * vocab_size * width
    scales = 9 * num_layers * width + outputs * vocab_size if bits < 16 else 0
    return weights * bits // 8 + scale_bytes * scales


def _draw_shape(rng: Random) -> tuple[int, int, int, int]:
    return rng.randint(1, 24), 8 * rng.randint(1, 96), 2 * rng.randint(10, 20_000), rng.choice((32, 16, 8, 4))


SHAPES = [
    *((*shape, bits) for shape in ((1, 8, 20), (4, 192, 2_048)) for bits in (32, 16, 8, 4)),
    (12, 768, 50_256, 8),
    *draw(_draw_shape),
]
BYTE_MISTAKES: dict[str, Callable[..., Any]] = {
    "every step multiplies by the output matrix, too": partial(gpt2_bytes, outputs=0),
    "you return bits, expected bytes": lambda *shape: 8 * gpt2_bytes(*shape),
    "a scale belongs to a row, an output; you count the columns": lambda layers, width, vocab, bits: (
        gpt2_bytes(layers, width, vocab, bits, scale_bytes=0) + 4 * (7 * layers * width + width) * (bits < 16)
    ),
    "in 8 and 4 bits each row has a scale": partial(gpt2_bytes, scale_bytes=0),
    "a scale is a float32: four bytes": partial(gpt2_bytes, scale_bytes=1),
    "in 32 and 16 bits a weight is a float, and needs no scale": lambda layers, width, vocab, bits: (
        gpt2_bytes(layers, width, vocab, bits, scale_bytes=0) + 4 * (9 * layers * width + vocab)
    ),
    "the embedding table is the output matrix, or is looked up: it is not read a second time": partial(
        gpt2_bytes, outputs=2
    ),
    "each row has a scale of its own, not each matrix": lambda layers, width, vocab, bits: (
        gpt2_bytes(layers, width, vocab, bits, scale_bytes=0) + 4 * (4 * layers + 1) * (bits < 16)
    ),
}


register(
    "12.1", Comparison(SHAPES, Expected(gpt2_bytes, BYTE_MISTAKES), inputs("num_layers", "width", "vocab_size", "bits"))
)

# 12.2 and 12.3: numbers are drawn near whole multiples of a scale, so that every right way of rounding rounds alike.


def _near_multiples(rng: Random, num_rows: int, width: int, group: int) -> Tensor:
    """Draw [num_rows, width] float32: the largest of each `group` values of a row is 127 times their scale, + or -."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    draw_ints = partial(torch.randint, generator=generator)
    values = draw_ints(-126, 127, (num_rows, width)) + 0.7 * (torch.rand(num_rows, width, generator=generator) - 0.5)
    for row in values:
        for part in row.split(group):
            part[int(draw_ints(len(part), (1,)))] = 127 * (2 * int(draw_ints(2, (1,))) - 1)
            part *= 2.0 ** int(draw_ints(-9, -2, (1,)))  # a power of two: scales are exact
    return values


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1) / 127
    return (weight / torch.where(scales > 0, scales, 1.0)[:, None]).round().to(torch.int8), scales


def _quantize_with(answer: Callable[[Tensor], object], weight: Tensor) -> dict[str, Tensor]:
    before = weight.clone()
    got = named_tensors(answer(weight), "values", "scales")
    require_unchanged([before], [weight], ["weight"])
    zeros, scales = (weight == 0).all(1), got["scales"]
    if scales.shape == zeros.shape and scales[zeros].isfinite().all():  # any scale gives zeros back
        got["scales"] = scales.masked_fill(zeros, 0)
    return got


def _expected_part(index: int, mistakes: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]]) -> Expected:
    wrong = {why: _part(function, index) for why, function in mistakes.items()}
    return Expected(_part(quantized, index), wrong, explain_tensor)


def _part(function: Callable[[Tensor], tuple[Tensor, Tensor]], index: int) -> Callable[[Tensor], Tensor]:
    return lambda weight: function(weight)[index]


def _with_scale(scale_of: Callable[[Tensor], Tensor], rounded: Callable[[Tensor], Tensor] = torch.round) -> Callable:
    """Make a quantize that uses the scales of `scale_of`, whose shape broadcasts to the weight's."""

    def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
        scales = scale_of(weight)
        values = rounded(weight / torch.where(scales == 0, 1.0, scales)).to(torch.int32).to(torch.int8)
        return values, scales.expand(len(weight), 1)[:, 0] if scales.shape[-1] == 1 else scales[0]

    return quantize


def _largest(weight: Tensor) -> Tensor:
    return weight.abs().amax(1, keepdim=True)


ROUNDING_MISTAKES = {
    "the values were cut off, not rounded": _with_scale(lambda w: _largest(w) / 127, torch.trunc),
}
SCALE_MISTAKES = {
    "one scale for the whole matrix; each row has its own": _with_scale(lambda w: w.abs().max().view(1, 1) / 127),
    "a scale for each column; each row has its own": _with_scale(lambda w: w.abs().amax(0, keepdim=True) / 127),
    "int8 ends at 127: the largest value has become 128, which wraps to -128": _with_scale(lambda w: _largest(w) / 128),
    "the largest value without its sign counts, a negative one as well": _with_scale(
        lambda w: w.amax(1, keepdim=True) / 127
    ),
}


def _draw_matrix(rng: Random) -> tuple[Tensor]:
    num_rows, width = rng.randint(1, 6), rng.randint(1, 9)
    weight = _near_multiples(rng, num_rows, width, group=width)
    if rng.random() < 0.2:
        weight[rng.randrange(num_rows)] = 0
    return (weight,)


MATRICES = [*draw(_draw_matrix), (torch.zeros(2, 3),), (_near_multiples(Random(0), 2, 3, 3),)]
MATRICES += [(_near_multiples(Random(1), 3, 700, 700),), (2.0**20 * _near_multiples(Random(2), 2, 5, 5),)]

register(
    "12.2",
    Comparison(
        MATRICES,
        {
            "values": _expected_part(0, ROUNDING_MISTAKES | SCALE_MISTAKES),
            "scales": _expected_part(1, SCALE_MISTAKES),
        },
        lambda weight: f"weight of shape {tuple(weight.shape)}",
        call=_quantize_with,
    ),
)

# 12.3


def grouped_product(x: Tensor, values: Tensor, scales: Tensor, group: int = GROUP) -> Tensor:
    """Round x to 8 bits, one scale for each `group` values of a row; multiply it by values * scales in float64."""
    rounded = torch.cat([_rounded(part) for part in x.double().split(group, dim=1)], dim=1)
    return (rounded @ values.double().T * scales.double()).float()


def _rounded(x: Tensor) -> Tensor:
    whole, step = _in_steps(x)
    return whole * step


def _in_steps(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each row into whole steps, and return them and the step: 127 steps are the row's largest value."""
    step = _largest(x) / 127
    return (x / torch.where(step > 0, step, 1.0)).round(), step


def _steps_alone(x: Tensor) -> Tensor:
    return torch.cat([_in_steps(part)[0] for part in x.split(GROUP, 1)], 1)


def _multiply_with(answer: Callable[..., object], *given: Tensor) -> object:
    before = [tensor.clone() for tensor in given]
    got = answer(*given)
    require_unchanged(before, given, ["x", "values", "scales"])
    return got


def _int8_sums(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Multiply with sums that wrap around as int8 does."""
    total = torch.zeros(len(x), len(values))
    for part, columns in zip(x.split(GROUP, 1), values.split(GROUP, 1), strict=True):
        whole, scale = _in_steps(part)
        whole = whole.long() @ columns.long().T
        total += ((whole + 128) % 256 - 128) * scale
    return total * scales


def _first_scale(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Round each group by its own scale, but multiply all groups by the scale of the first one."""
    return _steps_alone(x) * (_largest(x[:, :GROUP]) / 127) @ (values * scales[:, None]).T


def _without_the_rest(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    width = x.shape[1] // GROUP * GROUP
    return grouped_product(x[:, :width], values[:, :width], scales) if width else torch.zeros(len(x), len(values))


PRODUCT_MISTAKES: dict[str, Callable[..., Any]] = {
    "x is not rounded: it must be in 8 bits, too": lambda x, values, scales: x @ (values * scales[:, None]).T,
    f"one scale for a whole row of x; each {GROUP} values have their own": partial(grouped_product, group=10**9),
    "the scales of the matrix are missing": lambda x, values, scales: grouped_product(x, values, scales**0),
    f"what is left after the last full {GROUP} is missing": _without_the_rest,
    "int8 @ int8 wraps around: convert both first": _int8_sums,
    "each group has a scale of its own; you multiply all of them by the first one's": _first_scale,
    "the scales of x are missing": lambda x, values, scales: _steps_alone(x) @ (values * scales[:, None]).T,
}


def _draw_product(rng: Random) -> tuple[Tensor, Tensor, Tensor]:
    width = rng.choice((1, 3, 63, 64, 65, 128, 130, 192))
    x = _near_multiples(rng, rng.randint(1, 3), width, GROUP)
    if rng.random() < 0.2:
        x[0, :GROUP] = 0
    weight = _near_multiples(rng, rng.randint(1, 4), width, group=width)
    return (x, *quantized(weight))


PRODUCTS = draw(_draw_product, number=60)

register(
    "12.3",
    Comparison(
        PRODUCTS,
        Expected(grouped_product, PRODUCT_MISTAKES, partial(explain_tensor, rtol=1e-4, atol=1e-3)),
        lambda x, values, scales: f"x of shape {tuple(x.shape)}, {len(values)} rows",
        call=_multiply_with,
    ),
)

register("12.4", four_bits_comparison())

# 12.5

TEXT = tuple(range(3, 60))
MODELS: dict[str, Callable[[], Model]] = {
    "gpt2": small_model,
    "llama": lambda: small_llama("llama"),
    "an untied output matrix": lambda: small_llama("qwen2", tie_embeddings=False),
}
ROWS = (1, 3, 16, 70)


@exercise("12.5")
def half_weights(answer: type[Stage]) -> None:
    require_stage(answer, "PackedWeights", "pack")
    require_all(LAYERS, partial(_judge_layer, answer), _describe_layer)  # a stage takes no layer that is wrong
    for name in MODELS:
        _judge_half(answer, name)


@torch.inference_mode()
def _judge_half(answer: type[Stage], name: str) -> None:
    model = MODELS[name]()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    stage = answer(model, num_blocks=4)
    after = model.state_dict()
    if before.keys() != after.keys():
        raise Wrong(f"{name}: the caller's model has lost its matrices; replace them in the stage's own model")
    require_unchanged(before.values(), after.values(), before, ": it is the caller's")
    if stage.model.lm_head is None:
        raise Wrong(f"{name}: the output matrix, the largest, is still the embedding table in float32")
    for part, layer, num_rows in _products(stage.model):
        held = tensors_of(layer)
        wide = sum(t.numel() for t in held if t.element_size() > 2)
        wide += sum(array.size for array in arrays_of(layer) if array.itemsize > 2)
        if isinstance(layer, nn.Linear) or wide > 2 * num_rows:
            raise Wrong(f"{name}: {part} holds its matrix in float32, expected 16 bits only")
        if any(t.dtype == torch.float16 for t in held):
            raise Wrong(f"{name}: {part} holds its matrix in float16, whose numbers end at 65,504; expected bfloat16")
    got, want = (reference_logits(m, list(TEXT)) for m in (stage.model, model))
    if got.dtype != want.dtype:
        raise Wrong(f"{name}: logits are {got.dtype}, expected {want.dtype}: a layer returns the dtype of its x")
    error = float((got - want).abs().max() / want.abs().max())
    if not error < MOST_ERROR:
        raise Wrong(f"{name}: logits are off by {error:.0%} of the largest; 16 bits explain at most {MOST_ERROR:.0%}")


MOST_ERROR = 0.1


def _products(model: Model) -> list[tuple[str, nn.Module, int]]:
    """List (name, layer, rows of the matrix) of the layers that stand where the caller's model has matrices."""
    plain = empty_model(model.config).named_modules()
    rows = {name: module.out_features for name, module in plain if isinstance(module, nn.Linear)}
    rows["lm_head"] = model.config.vocab_size
    return [(name, model.get_submodule(name), rows[name]) for name in sorted(rows)]


@torch.inference_mode()
def _judge_layer(answer: Any, num_rows: int, width: int, has_bias: bool, batch: int, times: int) -> str | None:
    weight, bias, x = _layer_case(num_rows, width, has_bias, batch, times)
    given = [x] if bias is None else [x, bias]
    handed = [tensor.clone() for tensor in given]
    layer = answer.pack(weight.clone(), None if bias is None else handed[1])
    product = x.to(torch.bfloat16).float() @ weight.to(torch.bfloat16).float().T
    explain = partial(explain_tensor, rtol=0.02, atol=0.05 * float(product.abs().max()))
    want, want_of_minus_x = (p if bias is None else p + bias for p in (product, -product))
    got = layer(handed[0])
    if message := explain(got, want):
        return "the bias is missing" if bias is not None and explain(got, product) is None else message
    if message := explain(layer(-x), want_of_minus_x):
        return f"called again, with -x: {message}"
    if explain(got, want):
        return "called again, with -x: the first call's result has changed, so both lie in the same memory"
    require_unchanged(given, handed, ["x", "bias"][: len(given)])
    return None


@cache
def _layer_case(
    num_rows: int, width: int, has_bias: bool, batch: int, times: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(num_rows * width)
    weight, bias, x = (torch.randn(s, generator=generator) for s in ((num_rows, width), (num_rows,), (batch, width)))
    return weight, 3 * times * width**0.5 * bias if has_bias else None, times * x  # a bias that is missed shows


def _describe_layer(num_rows: int, width: int, has_bias: bool, batch: int, times: int) -> str:
    matrix = f"a matrix [{num_rows}, {width}] {'with' if has_bias else 'without'} a bias"
    return f"pack of {matrix}, {batch} rows of x" + (f" times {times:,}" if times > 1 else "")


def _draw_layer(rng: Random) -> tuple[int, int, bool, int, int]:
    return rng.randint(1, 40), rng.randint(1, 70), rng.random() < 0.5, rng.choice(ROWS), rng.choice((1, 1, BEYOND_FP16))


BEYOND_FP16 = 2**18
LAYERS = draw(_draw_layer)
