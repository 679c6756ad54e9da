"""Stage 12, packed weights: every weight matrix is rearranged once into the layout in which this CPU multiplies it.

What was slow:  reading the weights: a decode step reads every matrix once for a few rows. A CPU multiplies fastest with
                the matrix in blocks that fit its registers. A linear layer with row-major weights either rearranges
                them on every call, or reads them as they are, far below the memory's bandwidth.
The change:     oneDNN, which is part of PyTorch, rearranges each matrix once, when the stage is created. So does the
                output matrix, the largest of all.
What it gives:  the same products of the same bytes, read close to the memory's bandwidth.
Where it loses: memory: lookups need the embedding table as it is, so a tied output matrix is stored twice; and this
                stage keeps the caller's matrices, so all are. Creating the stage takes time. A GPU gains nothing: its
                libraries read row-major weights at full speed, so the matrices stay.

The ops are private ones of torch.compile. Where they are missing or fail, the stage behaves as stage 11.
Post: "Scheduling and benchmark" joins Q, K and V into one matrix; this course's models do so from the start.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.models import Model, empty_model

from .s11_fused_step import FusedStep


class PackedLinear(nn.Module):
    """x [N, K] -> x @ weight.T + bias [N, M], with weight [M, K] in oneDNN's layout."""

    rows_of_x = 16  # a hint for the layout, which works for any number of rows

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), self.rows_of_x)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @property
    def weight_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.packed, self.bias) if t is not None)


class PackedWeights(FusedStep):
    """FusedStep on a copy of the model, which shares all tensors but the matrices with the caller's."""

    name = "s12_packed_weights"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        if self.can_pack(model):
            model = self.with_packed_matrices(model)
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)

    @classmethod
    def can_pack(cls, model: Model) -> bool:
        """Whether `pack` works here in the model's dtype; it is tried out."""
        if model.device.type != "cpu":
            return False
        x, weight, bias = (torch.ones(shape, dtype=model.dtype) for shape in ((2, 32), (16, 32), (16,)))
        try:
            return torch.allclose(cls.pack(weight, bias)(x), F.linear(x, weight, bias), rtol=0.02)
        except (AttributeError, RuntimeError):
            return False

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """The layer that computes x @ weight.T + bias. A subclass with another layout overrides this method."""
        return PackedLinear(weight, bias)

    def with_packed_matrices(self, model: Model) -> Model:
        """A second model on the same tensors; then each matrix is replaced in it."""
        twin = empty_model(model.config)
        twin.load_state_dict(model.state_dict(), assign=True)
        for parent in [module for module in twin.modules() if not isinstance(module, nn.Linear)]:
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, self.pack(child.weight, child.bias))
        if twin.lm_head is None:
            twin.lm_head = self.pack(twin.token_embedding.weight, None)
        return twin.requires_grad_(False).eval()
