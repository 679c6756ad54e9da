"""split_sizes: what each rank of a split model keeps, and what it has to exchange."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.display.table import Table
from roseinfer.models import empty_model, model_config
from roseinfer.parallel.split import shard_config
from roseinfer.planning.sizes import block_bytes

from ..views.rows_table import table

GB = 1e9


def split_sizes(spec: str, sizes: Sequence[int] = (1, 2, 4, 8), value_bytes: int = 2) -> Table:
    """Compute what each rank keeps and exchanges, a row for each number of ranks; nothing is loaded.

    value_bytes: of a weight, and of a value in the KV cache. Raises ValueError for a number that does not divide the
    model's heads.
    """
    whole, rows = model_config(spec), []
    for size in sizes:
        shape = shard_config(whole, size)
        weights = sum(p.numel() for p in empty_model(shape).parameters()) * value_bytes
        rows.append({
            "ranks": size,
            "weights of a rank, GB": weights / GB,
            "query heads": shape.num_heads,
            "KV heads": shape.num_kv_heads,
            "KV cache of a rank, KB per token": block_bytes(shape, 1, value_bytes) / 1000,
            "all-reduces per step": 2 * shape.num_layers if size > 1 else 0,
            "KB per token and all-reduce": shape.hidden_size * value_bytes / 1000 if size > 1 else 0.0,
        })  # fmt: skip
    formats = {name: "{:.1f}" for name in rows[0] if "GB" in name or "KB" in name}
    return table(rows, title=f"{spec}, {value_bytes} bytes per value", formats=formats)
