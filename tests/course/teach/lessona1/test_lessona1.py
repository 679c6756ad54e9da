"""Background notebook a1: wrong answers of its exercises are told what is wrong, and right ones pass."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from course.teach.lessona1.exercises import CAUSAL, GROUPED, make_heads, scores_of
from roseinfer.models import load_model
from roseinfer.models.rope import Rope, Rotation, rotate
from roseinfer.reference import reference_logits
from roseinfer.stage import PromptAttention

one_query, causal, rope = (solution(exercise_id, torch=torch) for exercise_id in ("a1.1", "a1.2", "a1.4"))
grouped = solution("a1.3", causal_attention=causal)


def kept_by_shape(answer, number=0):
    """The answer, with the first input of each shape in place of later ones."""
    kept = {}

    def answered(*inputs):
        inputs = list(inputs)
        inputs[number] = kept.setdefault(inputs[number].shape, inputs[number].clone())
        return answer(*inputs)

    return answered


# a1.1


def exp_in_double(query, keys, values):
    """exp of a double overflows, too, past 709."""
    weights = torch.exp(keys.double() @ query.double() / len(query) ** 0.5)
    return (weights @ values.double() / weights.sum()).float()


def scale_in_place(query, keys, values):
    return torch.softmax(keys @ query.div_(query.size(0) ** 0.5), 0) @ values


def token_by_token(query, keys, values):
    scores = [float(query @ key) / math.sqrt(len(query)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return sum(weight / sum(weights) * value for weight, value in zip(weights, values, strict=True))


def online(query, keys, values):
    """The online softmax of lesson 05, one token at a time."""
    top, total, acc = torch.tensor(-math.inf), 0.0, torch.zeros_like(query)
    for key, value in zip(keys, values, strict=True):
        score = query @ key * len(query) ** -0.5
        new_top = torch.maximum(top, score)
        total = total * torch.exp(top - new_top) + torch.exp(score - new_top)
        acc = acc * torch.exp(top - new_top) + torch.exp(score - new_top) * value
        top = new_top
    return acc / total


test_wrong_attention_of_one_query = wrong_answers(
    "a1.1",
    {
        "exp in double precision": (exp_in_double, "exp of a large score overflows: subtract the largest"),
        "keys kept by their shape": (kept_by_shape(one_query, 1), "scores in the hundreds"),
        "512 keys": (lambda q, k, v: one_query(q, k[:512], v[:512]), "T=1100, D=8"),
        "the query scaled in place": (scale_in_place, "query was handed in, and you have changed it"),
        "PyTorch's own": (
            lambda query, keys, values: F.scaled_dot_product_attention(query[None], keys, values)[0],
            "PyTorch's own F.scaled_dot_product_attention: write this part by hand",
        ),
        "PyTorch's own, by its other name": (
            lambda query, keys, values: torch.ops.aten.scaled_dot_product_attention(query[None], keys, values)[0],
            "PyTorch's own F.scaled_dot_product_attention: write this part by hand",
        ),
    },
)
test_right_attention_of_one_query = right_answers(
    "a1.1", {"token by token in Python": token_by_token, "the online softmax": online}
)


# a1.2


def mask_of(q):
    """[T, T]: -inf after the diagonal."""
    return torch.full((q.size(1), q.size(1)), -math.inf).triu(1)


def renormalised(q, k, v):
    """Masked after the exp, and divided by what is left; shifted by the largest visible score."""
    visible = torch.ones(q.size(1), q.size(1)).tril()
    scores = q @ k.mT / q.size(2) ** 0.5
    top = scores.masked_fill(visible == 0, -math.inf).amax(-1, keepdim=True)
    weights = torch.exp((scores - top).clamp(max=0)) * visible
    return weights / weights.sum(-1, keepdim=True) @ v


def filled(number):
    """Hidden scores become this number."""
    return lambda q, k, v: (q @ k.mT / q.size(2) ** 0.5).masked_fill(mask_of(q) < 0, number).softmax(-1) @ v


def by_logsumexp(q, k, v):
    """A score near -100,000 rounds logsumexp by up to 0.004."""
    scores = q @ k.mT / q.size(2) ** 0.5 + mask_of(q)
    return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v


def mask_of_a_thousand(q, k, v):
    visible = torch.ones(1024, 1024, dtype=torch.bool).tril()[: q.size(1), : q.size(1)]
    return (q @ k.mT / q.size(2) ** 0.5).masked_fill(~visible, -math.inf).softmax(-1) @ v


test_wrong_causal_attention = wrong_answers(
    "a1.2",
    {
        "a mask of 1,024 tokens": (mask_of_a_thousand, "T=1100, D=4: checking your answer raised RuntimeError"),
        "values kept by their shape": (kept_by_shape(causal, 2), "values differ"),
        "PyTorch's own": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            "PyTorch's own F.scaled_dot_product_attention",
        ),
        "-100,000 added": (
            lambda q, k, v: (q @ k.mT / q.size(2) ** 0.5 - 1e5 * (mask_of(q) < 0)).softmax(-1) @ v,
            "scores of the first key near -100,000, of later keys near 1,000",
        ),
    },
)
test_right_causal_attention = right_answers(
    "a1.2",
    {"masked after the exp": renormalised, "by logsumexp": by_logsumexp, "filled with -1e9": filled(-1e9)},
)


# a1.3


def by_view(q, k, v):
    """Query heads in groups: [H_kv, group, T, D]."""
    groups = q.unflatten(0, (len(k), -1))
    return causal(groups, k[:, None], v[:, None]).flatten(0, 1)


def with_pytorch(q, k, v):
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def groups_and_kv_heads_swapped(q, k, v):
    groups = q.unflatten(0, (-1, len(k)))
    return causal(groups, k, v).flatten(0, 1)


test_wrong_grouped_attention = wrong_answers(
    "a1.3",
    {
        "repeated in turns past groups of four": (
            lambda q, k, v: (grouped if len(q) <= 4 * len(k) else groups_and_kv_heads_swapped)(q, k, v),
            "H=32, H_kv=2, T=3, D=4",
        ),
        "broadcast": (causal, "RuntimeError"),
        "the mean of all": (lambda q, *kv: grouped(q, *(x.mean(0, keepdim=True) for x in kv)), "values differ"),
        "enable_gqa": (
            lambda q, k, v: F.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, enable_gqa=True
            ).squeeze(0),
            "enable_gqa of PyTorch's own",
        ),
        "masked with -100,000": (
            lambda q, k, v: filled(-1e5)(q, *(x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))),
            "every score near -100,000 (its exp is 0)",
        ),
    },
)
test_right_grouped_attention = right_answers("a1.3", {"by a view": by_view, "with PyTorch's own": with_pytorch})


# a1.4


def angles_of(x, positions, theta):
    half = x.size(-1) // 2
    return torch.outer(positions.float(), theta ** -(torch.arange(half) / half))[:, None]


def by_complex(x, positions, theta):
    a, b = x.chunk(2, -1)
    turned = torch.complex(a, b) * torch.polar(torch.ones(1), angles_of(x, positions, theta))
    return torch.cat([turned.real, turned.imag], -1)


def rotate_half(x, positions, theta):
    """As in transformers."""
    angles = angles_of(x, positions, theta).repeat(1, 1, 2)
    a, b = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


def in_place(x, positions, theta):
    return x.copy_(rotate_half(x, positions, theta))


test_wrong_rope = wrong_answers(
    "a1.4",
    {
        "a table of 8,192 positions": (
            lambda x, p, theta: rotate_half(x, torch.arange(8192)[p], theta),
            "positions=[10000, 3], theta=10000: checking your answer raised IndexError",
        ),
        "x kept by its shape": (kept_by_shape(rotate_half), "values differ"),
        "in place": (in_place, "x was handed in, and you have changed it"),
        "float64": (lambda *case: rotate_half(*case).double(), "dtype float64, expected float32"),
    },
)
test_right_rope = right_answers("a1.4", {"complex numbers": by_complex, "as in transformers": rotate_half})


@pytest.mark.parametrize("sizes", [*GROUPED, *((heads, heads, *rest) for heads, *rest in CAUSAL)])
def test_scores_lie_where_the_text_says(sizes):
    q, k, _ = make_heads(*sizes)
    scores = scores_of(q, k)
    assert scores.min() >= -100_000 and scores.max() <= 1_000


# What the checkers compare with is what the library computes.


def test_the_reference_of_the_checkers_is_the_librarys_attention():
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(5, heads, 8, generator=generator) for heads in (6, 2, 2))  # [T, H, D]
    want = PromptAttention()(0, q, k, v)
    assert torch.allclose(grouped(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1), want, atol=1e-5)


def test_the_reference_lets_the_bundled_model_compute_its_logits():
    model, token_ids = load_model("tiny"), [357, 258, 1156, 297]

    def attend(layer, q, k, v):
        return causal(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)

    with torch.no_grad():
        logits = model.logits(model(torch.tensor(token_ids), torch.arange(4), attend))
    assert torch.allclose(logits, reference_logits(model, token_ids), atol=1e-3)


def test_the_solution_turns_as_the_library_does():
    x, positions = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(4)), torch.tensor([0, 5, 200])
    rotation = Rotation(Rope(rope_theta=500_000.0), head_dim=8, length=201)
    assert torch.allclose(rope(x, positions, 500_000.0), rotate(x, *rotation(positions, x.dtype)), atol=1e-4)
