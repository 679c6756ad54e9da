"""Lesson 23: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import pytest
from rung_answers import accepted, refused
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import FewLaunches, Graphs

# 23.1


test_a_wrong_least = wrong_answers(
    "23.1",
    {
        "in bits": (solution("23.1", {"2 * (weights": "16 * (weights"}), "num_bytes: you return"),
        "the first sequence alone": (
            solution("23.1", {"sum(context_lens)": "sum(context_lens[:1])"}),
            "num_bytes: you return",
        ),
    },
)


def by_parts(num_layers, width, vocab_size, context_lens, num_launches, bytes_per_us, launch_us):
    """The bytes of weights and of the context apart, and the time by a condition."""
    weights = (12 * num_layers * width + vocab_size) * width
    context = sum(2 * num_layers * width * length for length in context_lens)
    reading, starting = 2 * (weights + context) / bytes_per_us, num_launches * launch_us
    return 2 * weights + 2 * context, starting if starting > reading else reading


test_a_right_least = right_answers(
    "23.1", {"in parts": by_parts, "a list": lambda *case: list(solution("23.1")(*case))}
)


# 23.2 and 23.3

MATRIX = "real_column[None, :] & real[:, None], other=0.0"
test_a_wrong_product = refused(
    "23.2",
    {
        "no mask for the width": (
            [
                ("mask=real_row[:, None] & real[None, :]", "mask=real_row[:, None]"),
                (MATRIX, "real_column[None, :], other=0.0"),
            ],
            "num_rows=1, num_out=1, WIDTH=1",
        ),
        "no `other`": ((", other=0.0)\n        at = column", ")\n        at = column"), "gives no `other`"),
        "one program does all": (("tl.program_id(0) * COLUMNS", "0"), "out[0, 32] is never stored"),
        "the weight is loaded twice": (
            ("        sums = tl.dot", f"        matrix = tl.load(weight + at, mask={MATRIX})\n        sums = tl.dot"),
            "right everywhere, but a program loads a value of weight 2 times; the budget is 1",
        ),
        "a mask of one dimension": (("real_row[:, None] & real[None, :]", "real_row & real"), "two tiles do not fit"),
    },
)
test_a_right_product = accepted(
    "23.2",
    {
        "sums without tl.dot": (
            'tl.dot(values, matrix, sums, input_precision="ieee")',
            "sums + tl.sum(values[:, :, None] * matrix[None, :, :], axis=1)",
        ),
        "the bias in front": [
            ("    sums += tl.load(bias + column, mask=real_column, other=0.0)[None, :]\n", ""),
            (
                "    sums = tl.zeros([ROWS, COLUMNS], tl.float32)\n",
                "    sums = tl.zeros([ROWS, COLUMNS], tl.float32)\n"
                "    sums += tl.load(bias + column, mask=real_column, other=0.0)[None, :]\n",
            ),
        ],
    },
)

TWO_LOOPS = """    row, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real_row, real_column = row < num_rows, column < num_out
    squares = tl.zeros([ROWS], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        k = start + tl.arange(0, CHUNK)
        mask = real_row[:, None] & (k < WIDTH)[None, :]
        values = tl.load(x + row[:, None] * WIDTH + k[None, :], mask=mask, other=0.0)
        squares += tl.sum(values * values, axis=1)
    scale = tl.rsqrt(squares / WIDTH + eps)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        k = start + tl.arange(0, CHUNK)
        real = k < WIDTH
        values = tl.load(x + row[:, None] * WIDTH + k[None, :], mask=real_row[:, None] & real[None, :], other=0.0)
        values = values * scale[:, None] * tl.load(norm + k, mask=real, other=0.0)[None, :]
        at = column[None, :] * WIDTH + k[:, None]
        matrix = tl.load(weight + at, mask=real_column[None, :] & real[:, None], other=0.0)
        sums = tl.dot(values, matrix, sums, input_precision="ieee")
    mask = real_row[:, None] & real_column[None, :]
    tl.store(out + row[:, None] * num_out + column[None, :], sums, mask=mask)
"""
test_a_wrong_norm = refused(
    "23.3",
    {
        "the scale of the first row": (("sums * scale[:, None]", "sums * tl.max(scale, axis=0)"), "values differ"),
        "three walks over x": (
            TWO_LOOPS.replace(
                "        squares += tl.sum",
                "        values = tl.load(x + row[:, None] * WIDTH + k[None, :], mask=mask, other=0.0)\n"
                "        squares += tl.sum",
            ),
            "a program loads a value of x 3 times; the budget is 2",
        ),
        "no root in the mask": (
            ("gain = tl.load(norm + k, mask=real, other=0.0)", "gain = tl.load(norm + k)"),
            "loads offset 1 of norm",
        ),
    },
)
test_a_right_norm = accepted(
    "23.3",
    {
        "two loops": TWO_LOOPS,
        "the norm's weights in the matrix": TWO_LOOPS.replace(
            "values * scale[:, None] * tl.load(norm + k, mask=real, other=0.0)[None, :]", "values * scale[:, None]"
        ).replace(
            "        sums = tl.dot",
            "        matrix *= tl.load(norm + k, mask=real, other=0.0)[:, None]\n        sums = tl.dot",
        ),
    },
)

# 23.4


def steps(changes):
    """The solution with another choice."""
    return solution("23.4", changes, FewLaunches=FewLaunches, Graphs=Graphs)


class ByLayers(FewLaunches):
    def static_step(self, bucket):
        return super().static_step(min(bucket, 16))


class Nothing(FewLaunches):
    def static_step(self, bucket):
        return lambda: None


class OneTokenLess(FewLaunches):
    def static_step(self, bucket):
        step = Graphs.static_step(self, bucket) if bucket > 16 else super().static_step(bucket)

        def moved():
            logits, tokens = step()
            return logits, tokens * 0

        return moved


class BySteps(Graphs):
    """Not a subclass of stage 23: it holds one."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.few = FewLaunches(model, **sizes)

    def static_step(self, bucket):
        if bucket > 16:
            return super().static_step(bucket)
        self.few.inputs_on_device, self.few.pool, self.few.attended = self.inputs_on_device, self.pool, self.attended
        self.few.attention = self.attention
        return self.few.static_step(bucket)


STEPS = {
    "as in stage 23": (FewLaunches, "in the step for 17 rows 9 of 9 products are stage 23's kernel"),
    "as in stage 13": (Graphs, "in the step for 1 row 9 of 9 products are not stage 23's kernel"),
    "the other way round": (steps({"> 16": "<= 16"}), "in the step for 1 row"),
    "16 are many": (
        steps({"> 16": ">= 16"}),
        "in the step for 16 rows 9 of 9 products are not stage 23's kernel: up to 16 rows",
    ),
    "17 are few": (steps({"> 16": ">= 32"}), "in the step for 17 rows"),
    "fewer rows than asked for": (ByLayers, "in the step for 17 rows"),
    "a step that does nothing": (Nothing, "the step for 1 row has no product"),
    "other tokens": (OneTokenLess, "prompt 0 of 3 (mixed lengths): "),
    "no stage": (3, "expected a subclass of FewLaunches, got 3"),
}
test_a_wrong_step = pytest.mark.needs_triton(wrong_answers("23.4", STEPS))


class Chosen(FewLaunches):
    def static_step(self, bucket):
        return (Graphs if bucket > 16 else FewLaunches).static_step(self, bucket)


test_a_right_step = pytest.mark.needs_triton(right_answers("23.4", {"a class chosen": Chosen, "composed": BySteps}))
