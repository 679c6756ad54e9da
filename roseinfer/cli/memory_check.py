"""A check that an engine fits the free memory, made before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roseinfer.planning.sizes import EngineSizes


def require_memory(flag: str, num_seqs: int, num_tokens: int, *, model: str, dtype: str, device: str) -> None:
    """Raise ValueError, naming the flag, unless an engine fits for num_seqs sequences of num_tokens tokens.

    Memory that a step takes and gives back is not counted. Sizes below 1, and more tokens than the model has positions,
    are left to the code that runs them.
    """
    from roseinfer.blocks import BLOCK_SIZE
    from roseinfer.models import model_config
    from roseinfer.planning.sizes import PlannedEngine

    num_tokens = min(max(num_tokens, 1), model_config(model).max_model_len)

    def sizes_for(seqs: int) -> EngineSizes:
        return PlannedEngine(
            model=model,
            num_blocks=seqs * -(-num_tokens // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            max_num_seqs=seqs,
            dtype=dtype,
            device=device,
        ).sizes()

    sizes = sizes_for(max(num_seqs, 1))
    fit = sizes.fit()
    if fit is not None and fit[0] < 0:
        available, one = sizes.total_bytes + fit[0], sizes_for(1).total_bytes
        most = 1 + (available - one) * (num_seqs - 1) // (sizes.total_bytes - one) if num_seqs > 1 else 0
        raise ValueError(
            f"{flag} {num_seqs}: an engine for so many sequences of {num_tokens:,} tokens takes "
            f"{sizes.total_bytes:,} bytes, and {device} has {available:,} available, for at most {max(most, 0):,}"
        )
