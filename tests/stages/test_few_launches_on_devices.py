"""Stage 23's kernel against PyTorch: what is in front of a product and behind it, in every combination and dtype."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stages.s23_few_launches import fused_linear

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
SHAPES = ((1, 1, 1), (3, 20, 40), (17, 70, 33), (70, 16, 130))  # rows, outputs, width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "parts",
    [(), ("bias",), ("norm", "bias"), ("norm", "bias", "gelu"), ("bias", "residual"), ("norm", "gelu", "residual")],
    ids="-".join,
)
def test_it_is_the_product_with_its_neighbours(parts, dtype, device):
    for num_rows, num_out, width in SHAPES:
        generator = torch.Generator().manual_seed(width)

        def drawn(*shape, generator=generator):
            return torch.randn(shape, generator=generator).to(dtype).to(device)

        x, weight = 3 * drawn(num_rows, width) + 1, drawn(num_out, width) / width**0.5
        bias = drawn(num_out) if "bias" in parts else None
        norm = (drawn(width), drawn(width), 1e-5) if "norm" in parts else None
        residual = drawn(num_rows, num_out) if "residual" in parts else None
        got = fused_linear(x, weight, bias, norm, residual, "gelu" in parts)

        wanted = x.double()
        if norm:
            wanted = F.layer_norm(wanted, (width,), norm[0].double(), norm[1].double(), norm[2])
        wanted = F.linear(wanted, weight.double(), None if bias is None else bias.double())
        if "gelu" in parts:
            wanted = F.gelu(wanted, approximate="tanh")
        if residual is not None:
            wanted = wanted + residual.double()
        tolerance = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
        assert got.dtype == dtype and got.shape == wanted.shape
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


def test_a_row_of_nan_stays_in_its_row(device):
    x = torch.ones(3, 8, device=device)
    x[1] = torch.nan
    weight = torch.ones(5, 8, device=device)
    got = fused_linear(x, weight, norm=(torch.ones(8, device=device), torch.ones(8, device=device), 1e-5), gelu=True)
    assert got[1].isnan().all() and got[[0, 2]].isfinite().all()
