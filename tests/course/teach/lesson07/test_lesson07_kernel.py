"""Lesson 07: wrong kernels are told what is wrong, right ones pass, and the trials tell mistakes apart."""

from __future__ import annotations

import pytest
import torch
from wrong_answers import assert_accepted, assert_refused, right_cases, wrong_cases

from course.teach import check, paged_case
from course.teach.exercises.attention_checks import attention_comparison
from course.teach.exercises.solutions import solution, solutions_of
from course.teach.lesson07.exercises import BATCHES, KERNEL_MISTAKES
from course.teach.measure.kernel_loads import GuardedKernel, OutOfBounds
from roseinfer.kernels import triton_mode
from stages.s05_block_table import paged_attention_reference
from stages.s07_triton_paged import power_of_two

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]
SOURCE = solutions_of("07")["07.2"]
interpreted = pytest.mark.skipif(triton_mode.MODE != "interpret", reason="the interpreter's own ways")


# 07.2


def launch(kernel, q, k, v, k_cache, v_cache, block_table, context_lens):
    """As in the notebook."""
    q, k, v, k_cache, v_cache = (x.contiguous() for x in (q, k, v, k_cache, v_cache))
    batch_size, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.empty_like(q)
    kernel[(batch_size, num_heads)](
        out,
        q,
        k,
        v,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        head_dim**-0.5,
        block_table.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        DIM_PAD=power_of_two(head_dim),
        BLOCK_SIZE=block_size,
    )
    return out


def kernel(*changes: tuple[str, str]):
    """The solution's kernel with some texts in place of others."""
    return solution("07.2", dict(changes), triton_mode=triton_mode, tl=triton_mode.language())


WRONG_KERNELS = {
    "store not masked": (
        [("(acc / total).to(out.dtype.element_ty), mask=real", "(acc / total).to(out.dtype.element_ty)")],
        "a store goes outside of every tensor; nearest is out",
    ),
    "the pool written": (
        [("    total = 1.0", "    total = 1.0\n    tl.store(k_cache + new_at - new_at + dim, new_k, mask=real)")],
        "k_cache was handed in, and you have changed it: attention only reads",
    ),
    "padded width for stride": (
        [("* HEAD_DIM + dim[None, :]", "* DIM_PAD + dim[None, :]")],
        "D=12, blocks of 2, bf16: 48 of 48 values are NaN",
    ),
    "4 tiles at most": (
        [("range(0, num_cached, BLOCK_SIZE)", "range(0, min(num_cached, 4 * BLOCK_SIZE), BLOCK_SIZE)")],
        "context_lens=[40], H=1, H_kv=1, D=16, blocks of 4, fp32: 16 of 16 values differ",
    ),
    "rows as wide as needed": (
        [("seq * table_row", "seq * (1 + (num_cached + BLOCK_SIZE - 1) // BLOCK_SIZE)")],
        "context_lens=[1, 1], H=4, H_kv=2, D=12, blocks of 2, fp32: 48 of 96 values differ, first at (1, 0, 0)",
    ),
    "keys loaded twice": (
        [
            (
                "        scores = ",
                "        keys = tl.load(k_cache + at, mask=readable, other=0.0).to(tl.float32)\n        scores = ",
            )
        ],
        "loaded 4 times for 2 query heads; the budget is 2",
    ),
} | {why: (tuple(changes.items()), why) for why, changes in KERNEL_MISTAKES.items()}


@interpreted
@wrong_cases("07.2", WRONG_KERNELS)
def test_a_wrong_kernel(answer, message):
    assert_refused("07.2", kernel(*answer), message, launch=launch)


TOKEN_BY_TOKEN = (
    SOURCE[: SOURCE.index("    num_cached = ")]
    + """
    num_cached = tl.load(context_lens + seq)
    for token in range(0, num_cached):
        block = tl.load(block_table + seq * table_row + token // BLOCK_SIZE).to(tl.int64)
        at = ((block * BLOCK_SIZE + token % BLOCK_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM + dim
        score = tl.sum(query * tl.load(k_cache + at, mask=real, other=0.0).to(tl.float32), axis=0)
        new_top = tl.maximum(top, score)
        acc *= tl.exp(top - new_top)
        total = total * tl.exp(top - new_top) + tl.exp(score - new_top)
        acc += tl.exp(score - new_top) * tl.load(v_cache + at, mask=real, other=0.0).to(tl.float32)
        top = new_top
    tl.store(out + q_at, acc / total, mask=real)
"""
)


RIGHT_KERNELS = {  # what stands in the solution, and what in its place
    "token by token": [(SOURCE, TOKEN_BY_TOKEN)],
    "scaled late, in other forms": [
        (".to(tl.float32) * scale", ".to(tl.float32)"),
        ("query * new_k", "query * scale * new_k"),
        ("(acc / total)", "(acc * (1.0 / total))"),
        ("tl.sum(query[None, :] * keys, axis=1)", "tl.sum(keys * (scale * query), axis=1)"),
    ],
}


@interpreted
@right_cases("07.2", RIGHT_KERNELS)
def test_a_right_kernel(answer):
    assert_accepted("07.2", kernel(*answer), launch=launch)


@interpreted
@pytest.mark.parametrize(
    "scale_last", [False, True], ids=["the interpreter raises", "the interpreter gives wrong numbers"]
)
def test_a_kernel_that_does_not_upcast(scale_last):
    changes = [(".to(tl.float32)", "")]
    if scale_last:  # the scale, fp32, would upcast the query after all
        changes += [
            (" * scale", ""),
            ("top = tl.sum(query * new_k, axis=0)", "top = tl.sum(query * new_k, axis=0) * scale"),
        ]
        changes += [("keys, axis=1)", "keys, axis=1).to(tl.float32) * scale")]
    verdict = check("07.2", kernel(*changes), launch=launch)
    assert "bf16: " in repr(verdict) and "right in fp32? Then upcast after every load" in repr(verdict)


def test_a_stub_is_not_attempted_and_a_plain_function_is_no_kernel():
    def plain(out, q):
        return out + q

    body = SOURCE.partition("# fmt: skip\n")[2]
    assert repr(check("07.2", kernel((body, "    ...\n")), launch=launch)) == "07.2 not attempted"
    assert "decorate the function with @triton_mode.jit" in repr(check("07.2", plain, launch=launch))


@interpreted
def test_an_error_in_a_kernel_is_the_learners_own():
    verdict = check("07.2", kernel(("slot[:, None]", "slots[:, None]")), launch=launch)
    assert "NameError: name 'slots' is not defined" in repr(verdict)


def test_plain_attention_is_the_references():
    attention_comparison(BATCHES, {})(paged_attention_reference)


@interpreted
def test_a_guarded_kernel_may_touch_its_own_tensors_only():
    case = paged_case([20, 3])
    torch.testing.assert_close(launch(GuardedKernel(kernel()), *case), paged_attention_reference(*case))
    wrong = kernel(("block * BLOCK_SIZE", "(block + 10_000_000) * BLOCK_SIZE"))
    with pytest.raises(OutOfBounds, match="a load goes outside of every tensor; nearest is "):
        launch(GuardedKernel(wrong), *case)
