"""Checkers of lesson 23: the least time of a step, two kernels, and a step that is chosen by its rows."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from roseinfer.arguments import counted
from roseinfer.kernels import triton_mode

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Case, Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.stage_checks import drawn_model, require_stage, require_tokens, stage_on_copy
from ..exercises.wrong import Wrong
from ..lessona3.rung_checks import register_rung
from .launch_counts import FUSED, PRODUCTS, kind_of, launches_of
from .rungs import FEW_ROWS, NORM_IN_FRONT

# 23.1


def _draw_step(rng: Random) -> Case:
    context_lens = [rng.randint(1, 400) for _ in range(rng.randint(1, 6))]
    speed = rng.choice((1, 50, 1000, 4000)), rng.choice((0.5, 1.5, 4))
    return (
        rng.randint(1, 12),
        rng.choice((8, 64, 768)),
        rng.randint(100, 50_000),
        context_lens,
        rng.randint(1, 200),
        *speed,
    )


WEIGHTS, CACHED = "num_layers * 12 * width * width + vocab_size * width", "sum(context_lens) * 2 * num_layers * width"
LARGER = "max(num_bytes / bytes_per_us, num_launches * launch_us)"
STEP_MISTAKES = {
    "num_bytes": {
        "those are numbers: in 16 bits each has two bytes": {"2 * (weights + cached)": "weights + cached"},
        "the output matrix is missing": {" + vocab_size * width": ""},
        "that is one layer": {"num_layers * 12": "12", "2 * num_layers": "2"},
        "the four matrices have 3, 1, 4 and 4 times width * width numbers": {"12 * width": "4 * width"},
        "K and V are both read, not one of them": {"* 2 * num_layers": "* num_layers"},
        "every layer has K and V of its own": {"2 * num_layers * width": "2 * width"},
        "the weights are read once for the whole batch, not for each sequence": {
            WEIGHTS: f"len(context_lens) * ({WEIGHTS})"
        },
        "every sequence reads K and V of its own tokens: add them up": {"sum(context_lens)": "max(context_lens)"},
    },
    "microseconds": {
        "that is the time to read; starting the kernels may take longer": {LARGER: "num_bytes / bytes_per_us"},
        "reading goes on while kernels are started: the larger time counts, not the sum": {
            LARGER: "num_bytes / bytes_per_us + num_launches * launch_us"
        },
    },
}
register(
    "23.1",
    Comparison(
        draw(_draw_step),
        as_solved_by_name("23.1", STEP_MISTAKES),
        inputs("num_layers", "width", "vocab_size", "context_lens", "num_launches", "bytes_per_us", "launch_us"),
    ),
)


# 23.2 and 23.3

EDGES = [(1, 1, 1), (1, 1, 64), (1, 32, 65), (2, 33, 1), (16, 32, 64)]
ALL_CHUNKS = {
    "only the first chunk counts: the loop goes on to WIDTH": {"range(0, WIDTH, CHUNK)": "range(0, CHUNK, CHUNK)"},
    "only the last chunk counts: give tl.dot the sums so far": {
        "matrix, sums,": "matrix, tl.zeros([ROWS, COLUMNS], tl.float32),"
    },
    "every row is that of x's first row": {"at = row[:, None] * WIDTH": "at = row[:, None] * 0"},
    "the weight is [num_out, WIDTH]: a column of the result is one of its rows": {
        "at = column[None, :] * WIDTH + k[:, None]": "at = k[:, None] * num_out + column[None, :]"
    },
    "every program reads the first COLUMNS rows of the weight: program p's begin at p * COLUMNS": {
        "at = column[None, :] * WIDTH": "at = (column % COLUMNS)[None, :] * WIDTH"
    },
}


def _draw_product(rng: Random) -> Case:
    return rng.randint(1, 16), rng.randint(1, 70), rng.randint(1, 140)


BIAS = "    sums += tl.load(bias + column, mask=real_column, other=0.0)[None, :]\n"
register_rung(
    FEW_ROWS,
    [*EDGES, *draw(_draw_product, 45)],
    {
        **ALL_CHUNKS,
        "the bias is missing": {BIAS: ""},
        "the bias is added once, not with every chunk": {
            BIAS: "",
            "        sums = tl.dot": f"    {BIAS}        sums = tl.dot",
        },
    },
    inputs("num_rows", "num_out", "WIDTH"),
    if_nan="does every load have a mask and other=0.0?",
    budget={"weight": 1, "x": 1, "bias": 1},
)

SQUARES = "        squares += tl.sum(values * values, axis=1)\n"
LAYER_NORM = {
    "    for start in": """    mean = tl.zeros([ROWS], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        k = start + tl.arange(0, CHUNK)
        mask = real_row[:, None] & (k < WIDTH)[None, :]
        mean += tl.sum(tl.load(x + row[:, None] * WIDTH + k[None, :], mask=mask, other=0.0), axis=1) / WIDTH
    for start in""",
    SQUARES: f"        values = tl.where(real_row[:, None] & real[None, :], values - mean[:, None], 0.0)\n{SQUARES}",
}
SCALE = "1.0 / tl.sqrt(squares / WIDTH + eps)"
register_rung(
    NORM_IN_FRONT,
    [
        *((*edge, 0.5) for edge in EDGES),
        *draw(lambda rng: (*_draw_product(rng), rng.choice((0.01, 0.5, 2.0))), 45),
    ],
    {
        **ALL_CHUNKS,
        "that is LayerNorm: RMSNorm subtracts no mean": LAYER_NORM,
        "the values are not multiplied by norm": {"values * gain[None, :]": "values"},
        "eps is missing": {"squares / WIDTH + eps": "squares / WIDTH"},
        "eps belongs under the root": {SCALE: "1.0 / (tl.sqrt(squares / WIDTH) + eps)"},
        "the root is of the mean of the squares, not of their sum": {"squares / WIDTH": "squares"},
        "the mean is over WIDTH values, not over the lanes of a chunk": {"squares / WIDTH": "squares / CHUNK"},
    },
    inputs("num_rows", "num_out", "WIDTH", "eps"),
    if_nan="does every load have a mask and other=0.0, and is eps under the root?",
    budget={"weight": 1, "x": 2, "norm": 2},
)


# 23.4

FEW = 16  # rows
BUCKETS = (1, 2, 4, 8, 12, FEW, FEW + 1, 32, 48, 64)
DEVICE = "cuda" if triton_mode.MODE == "compile" else "cpu"
PROMPTS = [[i % 29] * (1 + 5 * i % 17) for i in range(FEW + 1)]


@exercise("23.4")
def chosen_by_rows(answer: Any) -> None:
    require_stage(answer, "FewLaunches", "static_step")
    for bucket, products in _products_by_bucket(answer):
        fused = products.count(FUSED)
        if not products:
            raise Wrong(
                f"the step for {counted(bucket, 'row')} has no product: return what stage 13 or 23 returns for it"
            )
        if bucket <= FEW and fused < len(products):
            others = f"{len(products) - fused} of {len(products)} products are not stage 23's kernel"
            raise Wrong(f"in the step for {counted(bucket, 'row')} {others}: up to {FEW} rows it runs as in stage 23")
        if bucket > FEW and fused:
            raise Wrong(
                f"in the step for {bucket} rows {fused} of {len(products)} products are stage 23's kernel: with more "
                f"than {FEW} rows it runs as in stage 13"
            )
    for prompts in (PROMPTS[:3], PROMPTS):
        require_tokens(answer, drawn_model().to(DEVICE), max_tokens=4, prompts=prompts)


def _products_by_bucket(stage_class: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the names of the matrix products in the step that the stage captures, for each of BUCKETS."""
    stage: Any = stage_on_copy(stage_class, drawn_model().to(DEVICE), num_blocks=8)
    for bucket in BUCKETS:
        yield bucket, [name for name in launches_of(stage, bucket) if kind_of(name) == PRODUCTS]
