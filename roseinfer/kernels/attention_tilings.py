"""How a batch is cut into launches of paged_triton's kernels, and these into programs: from shapes alone.

A step of decodes is one launch, and so is a chunk alone. Any other step may mix them, and is two launches over the same
tensors: a program of the first serves a sequence with one new token, a program of the second a tile of a longer one.
Which of them a sequence belongs to is read in the kernel, since the host must not depend on lengths, and a program
whose sequence is the other launch's ends at once. So a decode is not padded to the many rows that a chunk is worth.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import triton_mode

COMBINED_VALUES = 512  # of the splits' results, read at a time by each warp of the program that adds them
SCRATCH_ROWS = 1 << 14  # rows of queries, each counted once a split, whose splits are kept until they are added


class Tiling(NamedTuple):
    """How attend_kernel cuts a batch; see decode_tiling and chunk_tiling.

    rows: of queries in a program. tile: cached tokens that it reads at a time. stages: tiles in flight. warps: of a
    program. programs: a batch with fewer is split. split_tokens: cached tokens that are worth a split of their own.
    """

    rows: int
    tile: int
    stages: int
    warps: int
    programs: int
    split_tokens: int


class Launch(NamedTuple):
    """One launch of attend_kernel: its grid (query tiles, KV heads, splits), and its constexprs and warps."""

    grid: tuple[int, int, int]
    options: dict[str, Any]


def decode_tiling(num_seqs: int, group: int, head_dim: int, itemsize: int) -> Tiling:
    """Choose the tiling of num_seqs sequences with one token each: one that does not spill (`roseinfer aot`).

    In 16 bits it is what was fastest on an H200, or nearly; from 32 sequences on, what was fastest for 64. Tilings of
    fp32 were not measured. itemsize: bytes of a value.
    """
    dim, rows = padded_dim(head_dim), max(16, power_of_two(group))
    if itemsize == 4 and group == 1:
        return Tiling(1, max(16, 2048 // dim), 1, 2, programs=1024, split_tokens=128)
    if itemsize == 4:
        return fp32_tiling(rows, dim)
    if group > 1 and num_seqs < 4:
        return Tiling(rows, max(16, min(128, 16384 // dim)), 3, 8, programs=256, split_tokens=128)
    if group > 1:
        return Tiling(rows, max(16, min(64, 8192 // dim)), 3, 4, programs=512, split_tokens=256)
    if num_seqs < 32:
        return Tiling(1, max(16, 4096 // dim), 1, 2, programs=1024, split_tokens=64)
    if num_seqs < 256:  # a tensor core takes 16 rows, and 15 of them are padding: still faster than a sum
        return Tiling(16, max(16, min(64, 8192 // dim)), 3, 4, programs=1024, split_tokens=256)
    return Tiling(1, max(16, 2048 // dim), 1, 2, programs=1024, split_tokens=256)


def chunk_tiling(max_query_len: int, group: int, head_dim: int, itemsize: int) -> Tiling:
    """Choose the tiling of sequences with up to max_query_len tokens: one that does not spill (`roseinfer aot`).

    A program has as many rows as the longest chunk fills. Some tilings were faster on an H200, but spill on an A100.
    itemsize: bytes of a value.
    """
    dim = padded_dim(head_dim)
    most = min(128, 8192 // dim) if itemsize == 2 else 32
    rows = max(16, 2 * power_of_two(group), min(most, power_of_two(group * max_query_len)))
    if itemsize == 4:
        return fp32_tiling(rows, dim)
    tile = max(16, min(64, 8192 // dim))
    if rows * dim > 4096:
        return Tiling(rows, tile, 2, 8, programs=256, split_tokens=256)
    return Tiling(rows, tile, 3, 4, programs=256, split_tokens=256)  # with two tiles in flight, more of these spill


def fp32_tiling(rows: int, dim: int) -> Tiling:
    """Return a tiling for products of fp32, made of several 16-bit ones with all values in registers: more threads."""
    return Tiling(rows, max(16, min(32, 2048 // dim)), 2, 8 if rows * dim > 2048 else 4, 256, split_tokens=256)


def attend_launches(
    num_tokens: int, num_seqs: int, max_query_len: int, num_kv_heads: int, group: int, head_dim: int, block_size: int,
    columns: int, itemsize: int,
) -> tuple[Launch, ...]:  # fmt: skip
    """Return the launches that attend to a batch, one after another.

    Args:
        num_tokens: new tokens of the batch.
        num_seqs: its sequences.
        max_query_len: the most new tokens of a sequence; where it is 1, every sequence has one.
        num_kv_heads: heads of K and V.
        group: query heads on each of them.
        head_dim: values of a head.
        block_size: tokens of a block.
        columns: columns of the block tables.
        itemsize: bytes of a value.
    """
    shape = num_kv_heads, group, head_dim, block_size, columns, itemsize
    decodes = launch_of(decode_tiling(num_seqs, group, head_dim, itemsize), 1, num_seqs, *shape)
    if max_query_len == 1:
        return (decodes,)
    tiling = chunk_tiling(max_query_len, group, head_dim, itemsize)
    tile_tokens = tiling.rows // group
    chunks = launch_of(tiling, tile_tokens, query_tiles(num_tokens, num_seqs, tile_tokens), *shape)
    if num_seqs == 1:
        return (chunks,)
    return decodes._replace(options=decodes.options | {"AMONG_CHUNKS": True}), chunks


def launch_of(
    t: Tiling, tile_tokens: int, tiles: int, num_kv_heads: int, group: int, head_dim: int, block_size: int,
    columns: int, itemsize: int,
) -> Launch:  # fmt: skip
    """Return a launch of `tiles` tiles, of tile_tokens tokens each. The other arguments: see attend_launches."""
    programs = tiles * num_kv_heads
    most = SCRATCH_ROWS // (programs * tile_tokens * group)
    splits = min(t.programs // programs, most, columns * block_size // t.split_tokens)
    splits, dim_pad, is_interpreted = max(1, splits), padded_dim(head_dim), triton_mode.MODE == "interpret"
    options = {
        "NUM_KV_HEADS": num_kv_heads, "GROUP": group, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad,
        "BLOCK_SIZE": block_size, "ROWS": t.rows, "TILE_TOKENS": tile_tokens, "TILE": t.tile, "STAGES": t.stages,
        "SPLIT_TOKENS": t.split_tokens if splits > 1 else 0, "num_warps": t.warps, "AMONG_CHUNKS": False,
        "SPLITS_AT_ONCE": max(1, min(8, COMBINED_VALUES * t.warps // (t.rows * dim_pad))),
        "PRECISION": "ieee" if itemsize == 2 or is_interpreted else "tf32x3", "UPCAST": is_interpreted,
    }  # fmt: skip
    return Launch((tiles, num_kv_heads, splits), options)


def query_tiles(num_tokens: int, num_seqs: int, tile_tokens: int) -> int:
    """Return the number of tiles of a chunks' launch: as many as any lengths may need, see sequence_of."""
    return num_tokens // tile_tokens + num_seqs


def store_shape(num_kv_heads: int, head_dim: int, block_size: int) -> dict[str, int]:
    """Return store_kernel's constexprs."""
    dim_pad = power_of_two(head_dim)
    return {
        "NUM_KV_HEADS": num_kv_heads, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad, "BLOCK_SIZE": block_size,
        "ROWS": max(1, 2048 // dim_pad),
    }  # fmt: skip


def padded_dim(head_dim: int) -> int:
    """Return the head size of a tile: no side of what tl.dot multiplies may be shorter than 16."""
    return max(16, power_of_two(head_dim))


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below n; the sides of a Triton tile are powers of two."""
    return 1 << (n - 1).bit_length()
