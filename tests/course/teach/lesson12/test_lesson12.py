"""Lesson 12: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution


def matrix_by_matrix(layers, width, vocab, bits):
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * layers + [(vocab, width)]
    return sum(m * n * bits / 8 + 4 * m * (bits in (4, 8)) for m, n in shapes)


test_right_bytes = right_answers(
    "12.1",
    {
        "matrix by matrix, a float": matrix_by_matrix,
        "a tensor": lambda *shape: torch.tensor(solution("12.1")(*shape)),
    },
)


# 12.2


quantize_with = partial(solution, "12.2", torch=torch)
quantize = quantize_with()
RETURNED = "return (weight / steps[:, None]).round().to(torch.int8), scales"


test_wrong_matrices = wrong_answers(
    "12.2",
    {
        "zeros with scale NaN": (
            quantize_with({RETURNED: f"{RETURNED} / scales * scales"}),
            "scales: ",
        ),
        "scales as a column": (
            quantize_with({RETURNED: f"{RETURNED}[:, None]"}),
            "only dimensions of size 1 differ",
        ),
        "changes weight": (
            quantize_with({"(weight / steps[:, None])": "weight.div_(steps[:, None])"}),
            "weight was handed in, and you have changed it",
        ),
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
        "zeros with scale 1": quantize_with({", scales\n": ", steps\n"}),
    },
)


# 12.3


product_with = partial(solution, "12.3", torch=torch, quantize=quantize)
FOR_THE_BATCH = {
    "quantize(group)": "quantize(group.reshape(1, -1))",
    "(rounded.int()": "(rounded.view(group.shape).int()",
}


test_wrong_products = wrong_answers(
    "12.3",
    {
        "groups of 32": (product_with({"split(64": "split(32"}), "values differ"),
        "one scale for the batch": (product_with(FOR_THE_BATCH), "values differ"),
        "changes x": (
            product_with({"return out": "x.round_()\n    return out"}),
            "x was handed in, and you have changed it",
        ),
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
    "12.3", {"padded, one einsum": padded_and_batched, "rounded first, then one product": rounded_first}
)


# 12.4


pack_with = partial(solution, "12.4", torch=torch)
PACKED = "values[:, 0::2] + 16 * values[:, 1::2]"
HALVES = "values[:, : values.shape[1] // 2] + 16 * values[:, values.shape[1] // 2 :]"


test_wrong_four_bits = wrong_answers(
    "12.4",
    {
        "scales with a dimension left": (pack_with({"scales[:, :, 0]": "scales"}), "scales: "),
        "changes weight": (
            pack_with({"    return": "    weight.round_()\n    return"}),
            "weight was handed in, and you have changed it",
        ),
        # Column j beside column j + columns / 2, as some layouts have them.
        "halves of a row": (pack_with({PACKED: HALVES}), "values differ, first at"),
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
        "zeros with scale 1": pack_with({"scales[:, :, 0]": "steps[:, :, 0]"}),
    },
)
