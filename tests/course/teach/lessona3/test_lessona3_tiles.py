"""The rungs a3.6 to a3.9: wrong kernels are told what is wrong, and right ones pass."""

from __future__ import annotations

from rung_answers import SOLUTIONS, accepted, refused

LARGER = "tl.maximum(top, tl.max(values, axis=0))"
test_a_wrong_long_softmax = refused(
    "a3.6",
    {
        "the tile's top alone": (
            (LARGER, "tl.max(values, axis=0)"),
            "NaN in out, though no NaN was loaded: exp overflows above 88, or total is 0: top begins at -inf",
        ),
        "one tile that is 16 times as wide": (
            """    row = tl.program_id(0) * num_columns
    column = tl.arange(0, 16 * TILE)
    real = column < num_columns
    values = tl.load(x + row + column, mask=real, other=float("-inf"))
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row + column, weights / tl.sum(weights, axis=0), mask=real)
""",
            "x [1, 70], values rising, TILE=2: out[0, 32] is never stored (38 of 70 values are not)",
        ),
        "the factor upside down": (
            ("tl.exp(top - new_top)", "tl.exp(new_top - top)"),
            "the factor exp(top - new_top) is not upside down",
        ),
        "three walks": (
            "\n".join(
                [
                    "    row = tl.program_id(0) * num_columns",
                    '    top = float("-inf")',
                    "    total = 0.0",
                    *(
                        f"    for start in range(0, num_columns, TILE):\n"
                        f"        at = start + tl.arange(0, TILE)\n"
                        f'        values = tl.load(x + row + at, mask=at < num_columns, other=float("-inf"))\n'
                        f"        {line}"
                        for line in (
                            "top = tl.maximum(top, tl.max(values, axis=0))",
                            "total += tl.sum(tl.exp(values - top), axis=0)",
                            "tl.store(out + row + at, tl.exp(values - top) / total, mask=at < num_columns)",
                        )
                    ),
                    "",
                ]
            ),
            "right everywhere, but a program loads a value of x 3 times; the budget is 2",
        ),
    },
)
test_a_right_long_softmax = accepted(
    "a3.6",
    {
        "top from a large negative number": [('top = float("-inf")', "top = -1e30")],
        "value by value, then tiles": [
            ("    for start in range(0, num_columns, TILE):\n        column = start + tl.arange(0, TILE)\n"
             '        values = tl.load(x + row + column, mask=column < num_columns, other=float("-inf"))\n',
             "    for column in range(num_columns):\n        values = tl.load(x + row + column)\n"),
            (LARGER, "tl.maximum(top, values)"),
            ("tl.sum(tl.exp(values - new_top), axis=0)", "tl.exp(values - new_top)"),
        ],
    },
)  # fmt: skip

test_wrong_scores = refused(
    "a3.7",
    {
        "stored by block id": (
            ("out + token", "out + block * BLOCK_SIZE + slot"),
            "program 0 stores to offset",
        ),
        "over slots": (
            ("keys, axis=1)", "keys, axis=0)"),
            "two tiles do not fit. A mask of rows or slots needs [:, None]",
        ),
        "the table past its end": (
            ("block_table + index", "block_table + index + 1"),
            "program 0 loads offset 1 of block_table, which has 1 element",
        ),
    },
)
test_right_scores = accepted(
    "a3.7",
    {
        "slot by slot": """    index = tl.program_id(0)
    dim = tl.arange(0, HEAD_DIM)
    block = tl.load(block_table + index)
    for token in range(index * BLOCK_SIZE, min((index + 1) * BLOCK_SIZE, context_len)):
        key = tl.load(k_cache + (block * BLOCK_SIZE + token % BLOCK_SIZE) * HEAD_DIM + dim)
        tl.store(out + token, tl.sum(tl.load(q + dim) * key, axis=0) * scale)
""",
        "keys not masked, the store masked": [("mask=cached[:, None], other=0.0", "mask=dim[None, :] >= 0")],
    },
)

test_wrong_attention = refused(
    "a3.8",
    {
        "the length not looked at": (
            ("start + slot < context_len", "start + slot >= 0"),
            "which is NaN: no token is there. Is the mask by context_len, and the block's id from block_table?",
        ),
        "values not masked": (
            ("v_cache + at, mask=cached[:, None], other=0.0", "v_cache + at"),
            "NaN in out: program 0 loads v_cache[",
        ),
        "the table by token": (
            ("block_table + start // BLOCK_SIZE", "block_table + start"),
            "2 elements. The table has an entry per block: that of token t is t // BLOCK_SIZE",
        ),
        "slots get a low score": (
            ('axis=1), float("-inf"))', "axis=1), -100.0)"),
            "scores far below 0: 4 of 4 values differ, first at (0,): got 0, expected",
        ),
        "slots in the maximum alone": (
            [
                ("tl.where(cached, tl.sum(query[None, :] * keys, axis=1), float(\"-inf\"))",
                 "tl.sum(query[None, :] * keys, axis=1)"),
                ("tl.exp(scores - new_top)", "tl.where(cached, tl.exp(scores - new_top), 0.0)"),
            ],
            "scores far below 0: NaN in out",
        ),
        "ten blocks": (("range(0, context_len,", "range(0, min(context_len, 10 * BLOCK_SIZE),"), "context_len=40"),
        "keys loaded twice": (
            (
                "        values =",
                "        keys = tl.load(k_cache + at, mask=cached[:, None], other=0.0)\n        values =",
            ),
            "right everywhere, but a program loads a value of k_cache 2 times; the budget is 1",
        ),
    },
)  # fmt: skip
test_right_attention = accepted(
    "a3.8",
    {
        "token by token": SOLUTIONS["a3.8"].partition("# fmt: skip\n")[2].partition("    for start")[0]
        + """    for token in range(context_len):
        block = tl.load(block_table + token // BLOCK_SIZE)
        at = (block * BLOCK_SIZE + token % BLOCK_SIZE) * HEAD_DIM + dim
        score = tl.sum(query * tl.load(k_cache + at), axis=0)
        new_top = tl.maximum(top, score)
        acc = acc * tl.exp(top - new_top) + tl.exp(score - new_top) * tl.load(v_cache + at)
        total = total * tl.exp(top - new_top) + tl.exp(score - new_top)
        top = new_top
    tl.store(out + dim, acc / total)
""",
        "the last block first": [
            ("    for start in", "    last = (context_len - 1) // BLOCK_SIZE * BLOCK_SIZE\n    for start in"),
            ("        cached =", "        start = last - start\n        cached ="),
        ],
    },
)  # fmt: skip

test_wrong_product = refused(
    "a3.9",
    {
        "edges without masks": (
            ("mask=real_row & real[None, :], other=0.0", "mask=real_row & (inner >= 0)[None, :], other=0.0"),
            "x [1, 1] @ w [1, 1], tiles of 16: program 0 loads offset 1 of x, which has 1 element",
        ),
        "no other": (
            ("mask=real[:, None] & real_column, other=0.0", "mask=real[:, None] & real_column"),
            "program 0's load of w masks lanes and gives no `other`",
        ),
        "tiles counted down the columns": (
            ("across = tl.cdiv(num_columns, COLUMNS)", "across = tl.cdiv(num_rows, ROWS)"),
            "is never stored",
        ),
        "a program for all": (
            [
                ("    row = tl.program_id(0) // across * ROWS", "    row = 0 * across"),
                ("column = tl.program_id(0) % across * COLUMNS", "column = 0"),
            ],
            "programs store out[0, 0]: each program has a part of its own",
        ),
    },
)
test_right_product = accepted(
    "a3.9",
    {
        "products by broadcasting": [
            (
                'tl.dot(x_tile, w_tile, total, input_precision="ieee")',
                "total + tl.sum(x_tile[:, :, None] * w_tile[None, :, :], axis=1)",
            )
        ],
        "added outside of tl.dot": [
            (
                'total = tl.dot(x_tile, w_tile, total, input_precision="ieee")',
                'total += tl.dot(x_tile, w_tile, input_precision="ieee")',
            )
        ],
    },
)
