"""Lesson 12: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution


def step_bytes(layers, width, vocab, bits):
    rows = 9 * layers * width + vocab
    return (12 * layers * width**2 + vocab * width) * bits // 8 + (4 * rows if bits < 16 else 0)


test_wrong_bytes = wrong_answers(
    "12.1",
    {
        "one layer": (lambda L, C, V, bits: step_bytes(1, C, V, bits), "you return"),
        "printed": (lambda *shape: print(step_bytes(*shape)), "is a `return` missing?"),
    },
)


def matrix_by_matrix(layers, width, vocab, bits):
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * layers + [(vocab, width)]
    return sum(m * n * bits / 8 + 4 * m * (bits in (4, 8)) for m, n in shapes)


test_right_bytes = right_answers(
    "12.1",
    {
        "matrix by matrix, a float": matrix_by_matrix,
        "numpy": lambda *shape: np.int64(step_bytes(*shape)),
        "a tensor": lambda *shape: torch.tensor(step_bytes(*shape)),
    },
)


# 12.2


def quantize(weight, dtype=torch.int8):
    scales = weight.abs().amax(1) / 127
    values = (weight / torch.where(scales == 0, 1, scales)[:, None]).round().to(torch.int32).to(dtype)
    return values, scales


def in_place(weight):
    values, scales = quantize(weight)
    weight.div_(torch.where(scales == 0, 1, scales)[:, None])
    return values, scales


def zeros_divided(weight):
    scales = weight.abs().amax(1) / 127
    return (weight / scales[:, None]).round(), scales


test_wrong_matrices = wrong_answers(
    "12.2",
    {
        "0 / 0": (zeros_divided, "values: dtype float32, expected int8"),
        "zeros with scale NaN": (
            lambda w: (quantize(w)[0], torch.where((w == 0).all(1), torch.nan, quantize(w)[1])),
            "scales: ",
        ),
        "int32": (lambda w: quantize(w, dtype=torch.int32), "values: dtype int32, expected int8"),
        "scales as a column": (lambda w: (quantize(w)[0], quantize(w)[1][:, None]), "only dimensions of size 1 differ"),
        "the other way round": (lambda w: quantize(w)[::-1], "values: "),
        "only the values": (lambda w: quantize(w)[0], "expected (values, scales), got Tensor"),
        "changes weight": (in_place, "weight was handed in, and you have changed it"),
        "back in floats": (lambda w: (quantize(w)[0] * quantize(w)[1][:, None], quantize(w)[1]), "dtype float32"),
    },
)


def row_by_row(weight):
    values, scales = torch.zeros(weight.shape, dtype=torch.int8), torch.zeros(len(weight))
    for i, row in enumerate(weight):
        largest = max(map(abs, row.tolist()))
        scales[i] = largest / 127
        if largest:
            values[i] = torch.tensor([round(x * 127 / largest) for x in row.tolist()], dtype=torch.int8)
    return [values, scales]


def in_numpy(weight):
    rows = weight.numpy()
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    values = np.rint(np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0))
    return torch.from_numpy(values.astype(np.int8)), torch.from_numpy(scales)


test_right_matrices = right_answers(
    "12.2",
    {
        "row by row": row_by_row,
        "numpy": in_numpy,
        "NaN replaced": lambda w: (zeros_divided(w)[0].nan_to_num(0).to(torch.int8), zeros_divided(w)[1]),
        "zeros with scale 1": lambda w: (quantize(w)[0], torch.where((w == 0).all(1), 1.0, quantize(w)[1])),
        "clamped from below": lambda w: (quantize(w.clone())[0], w.abs().amax(1).clamp_min(0) / 127),
    },
)


# 12.3


def product(x, values, scales, group=64, convert=torch.Tensor.float, rounded=torch.round):
    total = torch.zeros(len(x), len(values))
    for part, columns in zip(x.split(group, 1), values.split(group, 1), strict=True):
        scale = part.abs().amax(1, keepdim=True) / 127
        whole = rounded(part / torch.where(scale == 0, 1, scale))
        total += convert(whole) @ convert(columns).T * scale
    return total * scales


def one_batch_scale(x, values, scales):
    total = torch.zeros(len(x), len(values))
    for part, columns in zip(x.split(64, 1), values.split(64, 1), strict=True):
        scale = (part.abs().max() / 127).clamp_min(1e-30)
        total += (part / scale).round() @ columns.float().T * scale
    return total * scales


def changes_x(x, values, scales):
    result = product(x, values, scales)
    x.round_()
    return result


test_wrong_products = wrong_answers(
    "12.3",
    {
        "groups of 32": (lambda *a: product(*a, group=32), "values differ"),
        "one scale for the batch": (one_batch_scale, "values differ"),
        "cut off": (lambda *a: product(*a, rounded=torch.trunc), "values differ"),
        "transposed": (lambda *a: product(*a).T, "permute(1, 0)"),
        "float64": (lambda *a: product(*a).double(), "dtype float64, expected float32"),
        "changes x": (changes_x, "x was handed in, and you have changed it"),
    },
)


def padded_and_batched(x, values, scales):
    pad = -x.shape[1] % 64
    groups, columns = (F.pad(t.float(), (0, pad)).unflatten(1, (-1, 64)) for t in (x, values))
    steps = groups.abs().amax(2, keepdim=True) / 127
    whole = (groups / steps.clamp_min(1e-30)).round()
    return torch.einsum("bgk,rgk,bg->br", whole, columns, steps[..., 0]) * scales


def rounded_first(x, values, scales):
    parts = x.double().split(64, 1)
    steps = [(part.abs().amax(1, keepdim=True) / 127).clamp_min(1e-300) for part in parts]
    x = torch.cat([(part / step).round() * step for part, step in zip(parts, steps, strict=True)], 1)
    return (x @ (values * scales.double()[:, None]).T).float()


test_right_products = right_answers(
    "12.3",
    {
        "padded, one einsum": padded_and_batched,
        "integers": lambda *a: product(*a, convert=torch.Tensor.int),
        "rounded first, then one product": rounded_first,
        "rows one by one": lambda x, v, s: torch.cat([product(row[None], v, s) for row in x]),
    },
)


# 12.4


pack = solution("12.4", torch=torch)


def changes_weight(weight, group):
    result = pack(weight, group)
    weight.round_()
    return result


def divided_by_zero(weight, group):
    groups = weight.unflatten(1, (-1, group))
    scales = groups.gather(2, groups.abs().argmax(2, keepdim=True)) / -8
    whole = ((groups / scales).round().clamp(-8, 7) + 8).nan_to_num(0).to(torch.uint8).flatten(1)
    return whole[:, 0::2] + 16 * whole[:, 1::2], scales[:, :, 0]


def halves_of_a_row(weight, group):
    """Column j beside column j + columns / 2, as some layouts have them."""
    packed, scales = pack(weight, group)
    values = torch.stack([packed & 15, packed >> 4], 2).flatten(1)
    half = values.shape[1] // 2
    return values[:, :half] + 16 * values[:, half:], scales


test_wrong_four_bits = wrong_answers(
    "12.4",
    {
        "not packed": (lambda w, g: (pack(w, g)[0].repeat_interleave(2, 1), pack(w, g)[1]), "packed: "),
        "int8": (lambda w, g: (pack(w, g)[0].to(torch.int8), pack(w, g)[1]), "packed: dtype int8, expected uint8"),
        "scales with a dimension left": (lambda w, g: (pack(w, g)[0], pack(w, g)[1][..., None]), "scales: "),
        "only packed": (lambda w, g: pack(w, g)[0], "expected (packed, scales), got Tensor"),
        "changes weight": (changes_weight, "weight was handed in, and you have changed it"),
        "zeros become -8": (divided_by_zero, "packed: "),
        "halves of a row": (halves_of_a_row, "values differ, first at"),
    },
)


def byte_by_byte(weight, group):
    packed, scales = [], []
    for row in weight.tolist():
        values, own = [], []
        for first in range(0, len(row), group):
            part = row[first : first + group]
            scale = max(part, key=abs) / -8
            own.append(scale)
            values += [min(7, max(-8, round(value / scale))) + 8 if scale else 8 for value in part]
        packed.append([low | high << 4 for low, high in zip(values[::2], values[1::2], strict=True)])
        scales.append(own)
    return torch.tensor(packed, dtype=torch.uint8), torch.tensor(scales)


def in_numpy_with_views(weight, group):
    groups = weight.numpy().reshape(len(weight), -1, group)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(2)[..., None], 2)
    scales = largest / np.float32(-8)
    whole = np.rint(np.divide(groups, scales, out=np.zeros_like(groups), where=scales != 0)).clip(-8, 7)
    pairs = (whole + 8).astype(np.uint8).reshape(len(weight), -1, 2)
    return torch.from_numpy(pairs[..., 0] | pairs[..., 1] << 4), torch.from_numpy(scales[..., 0])


test_right_four_bits = right_answers(
    "12.4",
    {
        "byte by byte": byte_by_byte,
        "numpy": in_numpy_with_views,
        "zeros with scale 1": lambda w, g: (pack(w, g)[0], torch.where(pack(w, g)[1] == 0, 1.0, pack(w, g)[1])),
    },
)
