"""Checkers of lesson 12: the bytes of a step's weights, matrices and activations in 8 and 4 bits, a layout in 16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from course.contract.small_models import small_llama, small_model
from roseinfer.models import Model, empty_model
from roseinfer.profiling.reachable import arrays_of, tensors_of
from roseinfer.reference import reference_logits
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.solutions import solution
from ..exercises.stage_checks import require_stage
from ..exercises.tensor_checks import named_tensors, require_unchanged
from ..exercises.wrong import Wrong

# 12.1


def _draw_shape(rng: Random) -> tuple[int, int, int, int]:
    layers, eights, pairs = rng.choice(((24, 96, 20_000), (96, 1_600, 100_000)))
    return rng.randint(1, layers), 8 * rng.randint(1, eights), 2 * rng.randint(10, pairs), rng.choice((32, 16, 8, 4))


ROWS_OF_ALL = "num_layers * (3 + 1 + 4 + 1) * width + vocab_size"
BYTE_MISTAKES = {
    "every step multiplies by the output matrix, too": {" + vocab_size * width": "", " + vocab_size": ""},
    "you return bits, expected bytes": {"bits // 8 + (4": "bits + (32"},
    "a scale belongs to a row, an output; you count the columns": {ROWS_OF_ALL: "num_layers * 7 * width + width"},
    "in 8 and 4 bits each row has a scale": {"4 * rows if": "0 if"},
    "a scale is a float32: four bytes": {"4 * rows": "rows"},
    "in 32 and 16 bits a weight is a float, and needs no scale": {" if bits < 16 else 0": ""},
    "each row has a scale of its own, not each matrix": {ROWS_OF_ALL: "4 * num_layers + 1"},
    "the embedding table is the output matrix, or is looked up: it is not read a second time": {
        "+ vocab_size": "+ 2 * vocab_size"
    },
}
BYTES = as_solved("12.1", BYTE_MISTAKES)
register("12.1", Comparison(draw(_draw_shape, 80), BYTES, inputs("num_layers", "width", "vocab_size", "bits")))

# 12.2 to 12.4: numbers are drawn near whole multiples of a scale, so that every right way of rounding rounds alike.

GROUP = 64  # values of x that share a scale
TINY, LARGE = 2.0**-40, 2.0**20
EXACT = partial(explain_tensor, atol=0.0)


def _near(generator: torch.Generator, whole: Tensor) -> Tensor:
    return whole + 0.7 * (torch.rand(whole.shape, generator=generator) - 0.5)


def _near_multiples(rng: Random, num_rows: int, width: int, group: int) -> Tensor:
    """Draw [num_rows, width] float32: the largest of each `group` values of a row is 127 times their scale, + or -."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    values = _near(generator, torch.randint(-126, 127, (num_rows, width), generator=generator))
    for row in values:
        for part in row.split(group):
            part[rng.randrange(len(part))] = rng.choice((-127, 127))
            part *= 1.37 * 2.0 ** rng.randint(-9, -3)
    return values


def _quantize_with(answer: Callable[..., object], weight: Tensor, *group: int) -> dict[str, Tensor]:
    """Call an answer to 12.2, or to 12.4 with its group, which returns a matrix in few bits and the scales."""
    before = weight.clone()
    got = named_tensors(answer(weight, *group), "packed" if group else "values", "scales")
    require_unchanged([before], [weight], ["weight"])
    zeros, scales = ((weight.unflatten(1, (-1, *group)) if group else weight) == 0).all(-1), got["scales"]
    if scales.shape == zeros.shape and scales[zeros].isfinite().all():  # any scale gives zeros back
        got["scales"] = scales.masked_fill(zeros, 0)
    return got


def _draw_matrix(rng: Random) -> tuple[Tensor]:
    num_rows, width = rng.randint(1, 6), rng.randint(1, 9)
    weight = _near_multiples(rng, num_rows, width, group=width)
    if rng.random() < 0.2:
        weight[rng.randrange(num_rows)] = 0
    return (weight,)


MATRICES = [
    *draw(_draw_matrix),
    (torch.zeros(2, 3),),
    *((times * _near_multiples(Random(0), 2, 3, 3),) for times in (1, TINY, LARGE)),
    (_near_multiples(Random(1), 3, 700, 700),),
]
WRAP = {".to(torch.int8)": ".int().to(torch.int8)"}  # the conversion of a float past 127 depends on the processor
SCALE_MISTAKES = {
    "one scale for the whole matrix; each row has its own": {"amax(dim=1)": "amax().expand(len(weight))"},
    "a scale for each column; each row has its own": {"amax(dim=1)": "amax(dim=0)", "steps[:, None]": "steps"},
    "int8 ends at 127: the largest value has become 128, which wraps to -128": {"127": "128", **WRAP},
}
QUANTIZE_MISTAKES = {
    "values": {"the values were cut off, not rounded": {".round()": ".trunc()"}, **SCALE_MISTAKES},
    "scales": SCALE_MISTAKES,
}
register(
    "12.2",
    Comparison(
        MATRICES,
        as_solved_by_name("12.2", QUANTIZE_MISTAKES, EXACT, _quantize_with, torch=torch),
        lambda weight: f"weight of shape {tuple(weight.shape)}",
        call=_quantize_with,
    ),
)

# 12.3


def _multiply_with(answer: Callable[..., object], *given: Tensor) -> object:
    before = [tensor.clone() for tensor in given]
    got = answer(*given)
    require_unchanged(before, given, ["x", "values", "scales"])
    return got


def _explain_product(got: object, want: Tensor) -> str | None:
    return explain_tensor(got, want, rtol=1e-4, atol=1e-6 * float(want.abs().max()))


PRODUCT_MISTAKES = {
    "x is not rounded: it must be in 8 bits, too": {
        "quantize(group)": "group, torch.ones(len(x))",
        ".int()": ".float()",
    },
    f"one scale for a whole row of x; each {GROUP} values have their own": {"split(64,": "split(len(x[0]),"},
    "the scales of the matrix are missing": {"out * scales": "out"},
    f"what is left after the last full {GROUP} is missing": {"[:, None]": "[:, None] * (len(group[0]) == 64)"},
    "int8 @ int8 wraps around: convert both first": {".int()": ""},
}


def _product_of(rng: Random, width: int) -> tuple[Tensor, Tensor, Tensor]:
    x = _near_multiples(rng, rng.randint(1, 3), width, GROUP)
    if rng.random() < 0.2:
        x[0, :GROUP] = 0
    return (x, *QUANTIZE(_near_multiples(rng, rng.randint(1, 4), width, group=width)))


QUANTIZE = solution("12.2", torch=torch)
X, VALUES, SCALES = _product_of(Random(0), 70)
WIDTHS = (1, 3, 63, 64, 65, 128, 130, 192)
PRODUCTS = [
    *draw(lambda rng: _product_of(rng, rng.choice(WIDTHS)), number=60),
    _product_of(Random(0), 700),
    (TINY * X, VALUES, SCALES / TINY),
]
register(
    "12.3",
    Comparison(
        PRODUCTS,
        as_solved("12.3", PRODUCT_MISTAKES, _explain_product, torch=torch, quantize=QUANTIZE),
        lambda x, values, scales: f"x of shape {tuple(x.shape)}, {len(values)} rows",
        call=_multiply_with,
    ),
)

# 12.4

SIGNED = "groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))"
GROUP_SCALE_MISTAKES = {
    "one scale for a whole row; each group has its own": {
        SIGNED: "weight.gather(1, weight.abs().argmax(1, True))[:, None].expand(-1, groups.shape[1], 1)"
    },
    "with the largest value at 7, the number -8 is of no use": {SIGNED: "groups.abs().amax(2, True)", "/ -8": "/ 7"},
    "a largest value that is positive becomes 8, which is cut to 7: give its scale the other sign": {
        SIGNED: "groups.abs().amax(2, True)",
        "/ -8": "/ 8",
    },
}
PACKING_MISTAKES = {
    "packed": {
        "the values were cut off, not rounded": {".round()": ".trunc()"},
        "4 bits end at 7: 8 runs over into the other half of the byte": {".clamp(-8, 7)": ""},
        "the two halves of each byte are the wrong way round": {
            "values[:, 0::2] + 16 * values[:, 1::2]": "values[:, 1::2] + 16 * values[:, 0::2]"
        },
        "add 8 to each value: a half of a byte has no sign": {
            " + 8).to(torch.uint8)": ").int().bitwise_and(15).to(torch.uint8)"
        },
        **GROUP_SCALE_MISTAKES,
    },
    "scales": GROUP_SCALE_MISTAKES,
}


def _groups_of(rng: Random, num_rows: int, num_groups: int, group: int) -> tuple[Tensor, int]:
    """Draw values of which some are near 8; one group may be zeros."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    whole = torch.randint(-7, 8, (num_rows, num_groups, group), generator=generator).float()
    near = _near(generator, whole)
    near[(whole == 7) & (torch.rand(whole.shape, generator=generator) < 0.5)] = 7.75
    for values in near.flatten(0, 1):
        values[rng.randrange(group)] = -8
        values *= rng.choice((-1.37, 1.37)) * 2.0 ** rng.randint(-9, -2)
    if rng.random() < 0.2:
        near[rng.randrange(num_rows), rng.randrange(num_groups)] = 0
    return near.flatten(1), group


GROUPS = [
    *draw(lambda rng: _groups_of(rng, rng.randint(1, 4), rng.randint(1, 3), rng.choice((2, 4, 6, 8)))),
    (torch.zeros(2, 4), 2),
    (TINY * torch.tensor([[-8.0, 3.0, 1.0, -0.5]]), 2),
    _groups_of(Random(0), 9, 20, 32),
]
register(
    "12.4",
    Comparison(
        GROUPS,
        as_solved_by_name("12.4", PACKING_MISTAKES, EXACT, _quantize_with, torch=torch),
        lambda weight, group: f"weight of shape {tuple(weight.shape)}, group={group}",
        call=_quantize_with,
    ),
)

# 12.5

TEXT = tuple(range(3, 60))
MODELS: dict[str, Callable[[], Model]] = {
    "gpt2": small_model,
    "llama": lambda: small_llama("llama"),
    "an untied output matrix": lambda: small_llama("qwen2", tie_embeddings=False),
}
ROWS = (1, 3, 16, 70)
BEYOND_FP16 = 2**18
LAYER = inputs("rows", "columns", "has_bias", "rows of x", "times")
MOST_ERROR = 0.1


@exercise("12.5")
def half_weights(answer: type[Stage]) -> None:
    require_stage(answer, "PackedWeights", "pack")
    require_all(draw(_draw_layer), partial(_judge_layer, answer), LAYER)  # a stage takes no layer that is wrong
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
    # Before the layers are looked at: what a first call keeps is held, too.
    got, want = (reference_logits(m, list(TEXT)) for m in (stage.model, model))
    for part, layer, num_rows in _products(stage.model):
        held = tensors_of(layer)
        wide = sum(t.numel() for t in held if t.element_size() > 2)
        wide += sum(array.size for array in arrays_of(layer) if array.itemsize > 2)
        if isinstance(layer, nn.Linear) or wide > 2 * num_rows:
            raise Wrong(f"{name}: {part} holds its matrix in float32, expected 16 bits only")
        if any(t.dtype == torch.float16 for t in held):
            raise Wrong(f"{name}: {part} holds its matrix in float16, whose numbers end at 65,504; expected bfloat16")
    if got.dtype != want.dtype:
        raise Wrong(f"{name}: logits are {got.dtype}, expected {want.dtype}: a layer returns the dtype of its x")
    error = float((got - want).abs().max() / want.abs().max())
    if not error < MOST_ERROR:
        raise Wrong(f"{name}: logits are off by {error:.0%} of the largest; 16 bits explain at most {MOST_ERROR:.0%}")


def _products(model: Model) -> list[tuple[str, nn.Module, int]]:
    """List (name, layer, rows of the matrix) of the layers that stand where the caller's model has matrices."""
    plain = empty_model(model.config).named_modules()
    rows = {name: module.out_features for name, module in plain if isinstance(module, nn.Linear)}
    rows["lm_head"] = model.config.vocab_size
    return [(name, model.get_submodule(name), rows[name]) for name in sorted(rows)]


@torch.inference_mode()
def _judge_layer(answer: Any, num_rows: int, width: int, has_bias: bool, batch: int, times: int) -> str | None:
    generator = torch.Generator().manual_seed(num_rows * width)
    weight, bias, x = (torch.randn(s, generator=generator) for s in ((num_rows, width), (num_rows,), (batch, width)))
    x *= times
    bias *= 3 * times * width**0.5  # one that is missing shows
    given = [x, bias] if has_bias else [x]
    handed = [tensor.clone() for tensor in given]
    layer = answer.pack(weight.clone(), handed[1] if has_bias else None)
    product = x.to(torch.bfloat16).float() @ weight.to(torch.bfloat16).float().T
    explain = partial(explain_tensor, rtol=0.02, atol=0.05 * float(product.abs().max()))
    want, want_of_minus_x = (p + bias if has_bias else p for p in (product, -product))
    got = layer(handed[0])
    if message := explain(got, want):
        return "the bias is missing" if has_bias and explain(got, product) is None else message
    if message := explain(layer(-x), want_of_minus_x):
        return f"called again, with -x: {message}"
    if explain(got, want):
        return "called again, with -x: the first call's result has changed, so both lie in the same memory"
    require_unchanged(given, handed, ["x", "bias"][: len(given)])
    return None


def _draw_layer(rng: Random) -> tuple[int, int, bool, int, int]:
    return rng.randint(1, 40), rng.randint(1, 70), rng.random() < 0.5, rng.choice(ROWS), rng.choice((1, 1, BEYOND_FP16))
