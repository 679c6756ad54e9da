"""The fused products of a decode step, each against the modules that it stands for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from devices import DTYPES
from torch import Tensor, nn

from roseinfer.kernels.fused_triton import activate, add_norm, choose, embed, linear, matrix_of, rotate_in_place
from roseinfer.models.rope import Rope, Rotation, rotate
from roseinfer.sampling import NO_TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]

NORMS = {"no norm": None, "LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


def normal(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def norm_of(name: str, width: int, dtype: torch.dtype, device: str) -> nn.Module | None:
    if NORMS[name] is None:
        return None
    norm = NORMS[name](width, eps=1e-5).to(device, dtype)
    for i, parameter in enumerate(norm.parameters()):
        parameter.data = normal(width, dtype=dtype, device=device, seed=10 + i)
    return norm


def module_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(*weight.shape[::-1], bias=bias is not None)
    linear.weight = nn.Parameter(weight)
    if bias is not None:
        linear.bias = nn.Parameter(bias)
    return linear


def by_modules(x, weight, bias, norm, residual, then) -> Tensor:
    """In float64, from the same values."""
    double = None if norm is None else [p.double() for p in norm.parameters()]
    x = x.double()
    if isinstance(norm, nn.LayerNorm):
        x = F.layer_norm(x, x.shape[-1:], *double, eps=norm.eps)
    elif norm is not None:
        x = F.rms_norm(x, x.shape[-1:], *double, eps=norm.eps)
    y = F.linear(x, weight.double(), None if bias is None else bias.double())
    if then == "gelu":
        y = F.gelu(y, approximate="tanh")
    if then == "silu":
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual.double()


def far(got: Tensor, wanted: Tensor) -> float:
    assert got.shape == wanted.shape
    return float((got.double() - wanted).norm() / wanted.norm())


ALLOWED = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


# Rows, width and columns: one row, odd widths, one more than a program has, and as many rows as a step may have.
SHAPES = ((1, 768, 24), (5, 100, 33), (16, 7, 1), (17, 96, 130), (64, 64, 16))


@pytest.mark.parametrize("then", ["", "gelu", "silu"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_a_product_with_what_stands_around_it(dtype, norm, then, device):
    if dtype == torch.float32 and device == "cuda":
        x = normal(1, 16, dtype=dtype, device=device)
        with pytest.raises(ValueError, match="x must have 16 bits on a GPU, got torch.float32"):
            linear(x, matrix_of(module_of(x, None)))
        return
    if then == "silu" and norm == "LayerNorm":
        x, module = normal(1, 16, dtype=dtype, device=device), norm_of(norm, 16, dtype, device)
        with pytest.raises(ValueError, match="then='silu' must have a matrix without a bias"):
            linear(x, matrix_of(module_of(x, None), module), then=then)
        return
    for i, (num_rows, width, num_out) in enumerate(SHAPES):
        x = normal(num_rows, width, dtype=dtype, device=device)
        weight = normal(num_out * (2 if then == "silu" else 1), width, dtype=dtype, device=device, seed=1)
        module = norm_of(norm, width, dtype, device)
        bias = None if then == "silu" else normal(num_out, dtype=dtype, device=device, seed=2)
        residual = normal(num_rows, num_out, dtype=dtype, device=device, seed=3)
        residual, bias = ((None, None), (residual, None), (residual, bias))[i % 3]  # each with a shape or two
        wanted = by_modules(x, weight, bias, module, residual, then)
        matrix = matrix_of(module_of(weight, bias), module)
        assert far(linear(x, matrix, residual, then), wanted) < ALLOWED[dtype]


@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_a_sum_and_its_norm(dtype, norm, device):
    for num_rows, width in ((1, 768), (3, 100), (70, 1025)):
        x, y = (30 + normal(num_rows, width, dtype=dtype, device=device, seed=i) for i in (0, 1))
        module = norm_of(norm, width, dtype, device)
        for added in (None, y):
            total, normed = add_norm(x, module, added)
            assert total is x if added is None else far(total, x.double() + y.double()) < ALLOWED[dtype]
            assert far(normed, module.double()(total.double())) < ALLOWED[dtype]
            module = module.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_activations(dtype, device):
    x = 3 * normal(5, 3000, dtype=dtype, device=device)
    gate, up = x.double().chunk(2, dim=-1)
    assert far(activate(x, "silu"), F.silu(gate) * up) < ALLOWED[dtype]
    assert far(activate(x, "gelu"), F.gelu(x.double(), approximate="tanh")) < ALLOWED[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_embeddings_with_and_without_positions(dtype, device):
    table, places = (normal(n, 1030, dtype=dtype, device=device, seed=n) for n in (50, 9))
    tokens, positions = torch.tensor([49, 0, 7], device=device), torch.tensor([8, 0, 3], device=device)
    last, sources = torch.tensor([31, -1], device=device), torch.tensor([-1, -1], device=device)
    assert torch.equal(embed(tokens, positions, table, None, sources, last), table[tokens])
    added = table[tokens].double() + places[positions].double()
    assert far(embed(tokens, positions, table, places, sources, last), added) < ALLOWED[dtype]
    assert tokens.tolist() == [49, 0, 7] and last.tolist() == [31, -1]


@torch.inference_mode()
def test_tokens_of_the_step_before_are_taken_once(device):
    """Two of four tokens have sources, of which one holds NO_TOKEN; the last token has no entry."""
    table = normal(50, 40, dtype=torch.float32, device=device)
    tokens, positions = torch.tensor([49, 1, 7, 9], device=device), torch.zeros(4, dtype=torch.int64, device=device)
    last = torch.tensor([NO_TOKEN, 31, 5], device=device)
    sources = torch.tensor([-1, 1, 0], device=device)
    for _ in range(2):
        assert torch.equal(embed(tokens, positions, table, None, sources, last), table[[49, 31, 0, 9]])
        assert tokens.tolist() == [49, 31, 0, 9] and sources.tolist() == [-1, -1, -1]
        last += 2


@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_heads_are_turned_in_place(dtype, normalises, device):
    num_heads, num_kv_heads, head_dim = 5, 2, 12
    qkv = normal(3, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype, device=device)
    positions, rotation = torch.tensor([0, 9, 4], device=device), Rotation(Rope(), head_dim, 10)
    norms = [norm_of("RMSNorm", head_dim, dtype, device) for _ in range(2)] if normalises else [None, None]
    if normalises:
        norms[0].weight.data.mul_(3)
    q, k, v = qkv.float().split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    if normalises:
        q, k = (F.rms_norm(x, x.shape[-1:], n.weight.float(), n.eps) for x, n in zip((q, k), norms, strict=True))
    table = rotation.table_for(qkv.device, dtype)
    cos, sin = (x.float() for x in rotation(positions, dtype))
    wanted = torch.cat([rotate(q, cos, sin), rotate(k, cos, sin), v], dim=1)
    rotate_in_place(qkv, positions, table, num_heads, num_kv_heads, *norms)
    assert far(qkv, wanted.double()) < ALLOWED[dtype]
    assert torch.equal(qkv[:, num_heads + num_kv_heads :], v.to(dtype))


@torch.inference_mode()
def test_the_first_of_the_largest_logits_is_chosen_and_none_of_a_row_that_is_not_finite(device):
    wider = normal(6, 20_032, dtype=torch.float32, device=device)
    wider[:, 20_000:] = 1e9
    logits = wider[:, :20_000]
    logits[0, [19_999, 8_192, 40]] = 99
    logits[1, 5], logits[2, 5], logits[3] = float("nan"), float("inf"), float("-inf")
    logits[4, :-1] = float("-inf")
    wanted = [40, NO_TOKEN, NO_TOKEN, NO_TOKEN, 19_999, int(logits[5].argmax())]
    for rows in (logits, logits.contiguous()):
        tokens = torch.zeros(len(rows), dtype=torch.int64, device=device)
        assert choose(rows, tokens) is tokens and tokens.tolist() == wanted
