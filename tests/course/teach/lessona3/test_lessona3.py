"""The rungs a3.1 to a3.5: wrong kernels are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
from rung_answers import SOLUTIONS, accepted, interpreted, kernel, refused
from wrong_answers import assert_refused

from course.teach import check
from course.teach.exercises.exercise import find
from course.teach.lessona3.rungs import solved

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]

AT = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"

test_a_wrong_sum = refused(
    "a3.1",
    {
        "the first block for all": (
            (f"    at = {AT}", f"    at = {AT}\n    x -= tl.program_id(0) * BLOCK\n    y -= tl.program_id(0) * BLOCK"),
            "every program loads the first block",
        ),
        "out added": (
            ("tl.load(x + at) + tl.load(y + at)", "tl.load(out + at) + tl.load(x + at) + tl.load(y + at)"),
            "n=2, BLOCK=2: NaN in out: program 0 loads out[0] before it is stored",
        ),
        "a descriptor": (
            ("    tl.store", "    tl.make_tensor_descriptor(x, [BLOCK], [1], [BLOCK])\n    tl.store"),
            "tensor descriptors are not watched here. Use pointers and masks.",
        ),
        "into x": (("out + at", "x + at"), "program 0 stores to x[0]: a kernel writes nothing but out"),
        "all by the first program, which the others leave it to": (
            """    if tl.program_id(0) == 0:
        for start in range(0, tl.num_programs(0) * BLOCK, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(out + at, tl.load(x + at) + tl.load(y + at))
""",
            "n=4, BLOCK=2: program 1 stores nothing: each program has a part of its own, by tl.program_id(0)",
        ),
        "all by every program, of which each stores its own": (
            """    for start in range(0, tl.num_programs(0) * BLOCK, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = tl.load(x + at) + tl.load(y + at)
        tl.store(out + at, total, mask=at // BLOCK == tl.program_id(0))
""",
            "n=4, BLOCK=2: every program loads every value of x: each program has a part of its own",
        ),
        "far away": (
            ("x + at", "x + 100_000_000 + at"),
            "program 0 loads an address that is far from every tensor",
        ),
    },
)
test_a_pointer_with_brackets = refused(
    "a3.1",
    {
        "loads": (("tl.load(x + at)", "x[at]"), "a pointer has no [ ]: read with tl.load(x + ...)"),
        "a store": (
            f"    at = {AT}\n    out[at] = tl.load(x + at) + tl.load(y + at)\n",
            "write with tl.store(out + ..., tile)",
        ),
    },
)
test_a_right_sum = accepted(
    "a3.1",
    {
        "block pointers": "\n".join(
            [
                "    n, start = tl.num_programs(0) * BLOCK, tl.program_id(0) * BLOCK",
                "    a = tl.make_block_ptr(x, (n,), (1,), (start,), (BLOCK,), (0,))",
                "    b = tl.make_block_ptr(y, (n,), (1,), (start,), (BLOCK,), (0,))",
                "    c = tl.make_block_ptr(out, (n,), (1,), (start,), (BLOCK,), (0,))",
                "    tl.store(c, tl.load(a) + tl.load(b))",
                "",
            ]
        ),
        "out twice": """    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))
    tl.store(out + at, tl.load(out + at) + tl.load(y + at))
""",
    },
)

test_a_wrong_sum_of_any_length = refused(
    "a3.2",
    {
        "a load without": (("y + at, mask=real", "y + at"), "program 0 loads offset 1 of y, which has 1 element"),
        "one too few": (("at < n", "at < n - 1"), "n=1, BLOCK=2: out[0] is never stored (1 of 1 values are not)"),
        "the mask of the first block": (
            ("real = at < n", "real = tl.arange(0, BLOCK) < n"),
            "n=3, BLOCK=2: program 1 loads offset 3 of x",
        ),
        "not less": (
            ("at < n", "at >= n"),
            "1 element. The mask is the wrong way round: it must be True for the lanes inside",
        ),
    },
)
test_a_right_sum_of_any_length = accepted(
    "a3.2",
    {
        "offsets that stay inside": [
            ("    total", "    inside = tl.minimum(at, n - 1)\n    total"),
            ("x + at, mask=real", "x + inside"),
            ("y + at, mask=real", "y + inside"),
        ],
        "every so many values": """    for at in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(out + at, tl.load(x + at) + tl.load(y + at))
""",
    },
)

MASK = "mask=column < num_columns"
test_a_wrong_row_sum = refused(
    "a3.3",
    {
        "one lane without other": (
            """    row = tl.program_id(0)
    total = 0.0
    for column in range(COLUMNS):
        total += tl.load(x + row * num_columns + column, mask=column < num_columns)
    tl.store(out + row, total)
""",
            "x [1, 3], COLUMNS=4: NaN in out: program 0's load of x masks lanes and gives no `other`",
        ),
        "Python's sum": (
            ("tl.sum(values, axis=0)", "sum(values)"),
            "Python's sum does not work on a tile: tl.sum(tile,",
        ),
        "the mask turned": (
            (MASK, "mask=column >= num_columns"),
            "the mask is the wrong way round: it must be True for the columns of x",
        ),
    },
)
test_a_right_row_sum = accepted(
    "a3.3",
    {
        "tiles of one lane": """    row = tl.program_id(0)
    total = tl.zeros([1], tl.float32)
    for start in range(COLUMNS):
        column = start + tl.arange(0, 1)
        total += tl.load(x + row * num_columns + column, mask=column < num_columns, other=0.0)
    tl.store(out + row, tl.sum(total, axis=0))
""",
        "a block pointer": """    row = tl.program_id(0)
    values = tl.make_block_ptr(x, (tl.num_programs(0), num_columns), (num_columns, 1), (row, 0), (1, COLUMNS), (1, 0))
    tl.store(out + row, tl.sum(tl.load(values, boundary_check=(1,), padding_option="zero")))
""",
    },
)

INF = 'other=float("-inf")'
test_a_wrong_softmax = refused(
    "a3.4",
    {
        "other is low, and not low enough": ((INF, "other=-300.0"), "masked lanes take part: with other=-inf"),
        "the largest is not subtracted": (
            ("values - tl.max(values, axis=0)", "values"),
            "NaN in out, though no NaN was loaded: exp overflows above 88, and is 0 far below 0",
        ),
        "Triton's own": (("weights / tl.sum(weights, axis=0)", "tl.softmax(values)"), "write the softmax by hand"),
        "Triton's own, by another name": (
            [("@triton", "weigh = tl.softmax\n\n\n@triton"), ("weights / tl.sum(weights, axis=0)", "weigh(values)")],
            "write the softmax by hand",
        ),
        "Triton's own, in a kernel that is called": (
            [
                ("@triton", "@triton_mode.jit\ndef weigh(x):\n    return tl.softmax(x)\n\n\n@triton"),
                ("weights / tl.sum(weights, axis=0)", "weigh(values)"),
            ],
            "write the softmax by hand",
        ),
    },
)
test_a_right_softmax = accepted(
    "a3.4",
    {
        "a softmax by hand, in a kernel that is called": [
            (
                "@triton",
                "@triton_mode.jit\ndef softmax(x):\n    x = tl.exp(x - tl.max(x, axis=0))\n"
                "    return x / tl.sum(x, axis=0)\n\n\n@triton",
            ),
            ("weights / tl.sum(weights, axis=0)", "softmax(values)"),
        ],
        "a large negative number": [(INF, "other=-1e30")],
    },
)

test_a_wrong_product = refused(
    "a3.5",
    {
        "the mask turned": (
            ("real_row[:, None] & real_column[None, :]", "(real_row[:, None] & real_column[None, :]) == 0"),
            "no element of w is added up: is the mask the wrong way round?",
        ),
        "no parentheses": (
            (
                "real_row[:, None] & real_column[None, :]",
                "row[:, None] < num_rows & column[None, :] < num_columns",
            ),
            "In your kernel: put each comparison in parentheses: & binds tighter than <",
        ),
        "and": (
            ("real_row[:, None] & real_column[None, :]", "real_row[:, None] and real_column[None, :]"),
            "In your kernel: between tiles, use & in place of `and`",
        ),
    },
)
test_a_right_product = accepted(
    "a3.5",
    {
        "and between numbers": [
            ("    row = tl", "    if num_rows > 0 and num_columns > 0:\n        pass\n    row = tl"),
        ],
        "column by column": """    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < num_rows
    total = tl.zeros([ROWS], tl.float32)
    for column in range(num_columns):
        part = tl.load(w + row * stride_row + column * stride_column, mask=real, other=0.0)
        total += part * tl.load(x + column)
    tl.store(out + row, total, mask=real)
""",
    },
)


def test_a_stub_is_not_attempted_and_a_plain_function_is_no_kernel():
    def add_kernel(out, x, y, BLOCK):
        return x + y

    assert repr(check("a3.1", kernel("a3.1", "    ...\n"))) == "a3.1 not attempted"
    assert "decorate the function with @triton_mode.jit" in repr(check("a3.1", add_kernel))


# The first of each kernel in every run, the others at night.
MISTAKES = [
    pytest.param(exercise_id, mistake, why, id=f"{exercise_id}: {why}", marks=[pytest.mark.nightly] if number else [])
    for exercise_id in SOLUTIONS
    for number, (why, mistake) in enumerate(find(exercise_id).comparisons[0].parts[""].mistakes.items())
]


@interpreted
@pytest.mark.parametrize(("exercise_id", "mistake", "why"), MISTAKES)
def test_a_kernel_with_a_named_mistake_reads_its_sentence(exercise_id, mistake, why):
    rung, changes = mistake.args
    assert_refused(exercise_id, solved(rung.id, changes), why)
