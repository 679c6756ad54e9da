"""One operator, constant, index or type changed in the source of a stage: what a slip of the hand leaves behind."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from stages import BlockTable, BlockTableCache, NaiveCat, PreallocGather, SelectAppend, TritonPaged, VectorizedGather

from .demonstrations import run
from .mutant import edit

ONE = run([5], 9)
MIXED = run([3, 9, 1], 9)
SMALL_BLOCKS = run([3, 9, 1], 9, block_size=4)
ONE_SMALL = run([9], 9, block_size=4)
GROUPS = run([3, 5], 9, "gpt2, 2 KV heads")

FIRST = ("one_sequence", "equal_lengths", "mixed_lengths")
TOKENS = (*FIRST, "blocks_come_back")
EDGES = ("block_edges", "small_blocks", "blocks_come_back")

S01, S02, S03, S04, S05, S06, S07 = (
    NaiveCat,
    PreallocGather,
    SelectAppend,
    VectorizedGather,
    BlockTable,
    BlockTableCache,
    TritonPaged,
)

MUTANTS = (
    # 01, naive cat
    edit(S01, "v for k in the cat", "v = torch.cat([past_v, v.unsqueeze(2)], dim=2)",
         "v = torch.cat([past_k, v.unsqueeze(2)], dim=2)", ONE, *FIRST),
    edit(S01, "mask <=", "(keys < lengths[:, None])", "(keys <= lengths[:, None])", MIXED, *TOKENS),
    edit(S01, "mask without the new token", "(keys < lengths[:, None]) | (keys == longest)",
         "(keys < lengths[:, None]) | (keys == longest + 1)", ONE, *FIRST),
    edit(S01, "mask without its own lengths", "(keys < lengths[:, None])", "(keys < longest + 0 * lengths[:, None])", MIXED, *TOKENS),
    edit(S01, "pads in front", "torch.cat([k_seq, k_pad], dim=2)", "torch.cat([k_pad, k_seq], dim=2)", MIXED, *TOKENS),
    edit(S01, "start one late", "start = i * self.block_size\n", "start = i * self.block_size + (i > 0)\n",
         ONE_SMALL, *EDGES),
    edit(S01, "> for >= at a block's end", "if start >= num_tokens:", "if start >= num_tokens - 1:", SMALL_BLOCKS,
         *TOKENS, *EDGES),
    edit(S01, "index from the length with the new token", "divmod(seq.num_cached_tokens, self.block_size)",
         "divmod(seq.num_cached_tokens + 1, self.block_size)", ONE, *FIRST),
    edit(S01, "slot of 64", "divmod(seq.num_cached_tokens, self.block_size)", "divmod(seq.num_cached_tokens, 64)",
         SMALL_BLOCKS, *EDGES, "fits_the_seam"),
    edit(S01, "k written twice", "        v_block[:, slot, :] = v\n", "        v_block[:, slot, :] = k\n", ONE, *FIRST),
    edit(S01, "layer 0's blocks", "self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]",
         "self.blocks[0][self.tables.of(seq.seq_id, layer)[index]]", ONE, *FIRST),
    edit(S01, "one block for all layers", "for _ in range(num_blocks)] for _ in range(self.config.num_layers)]",
         "for _ in range(num_blocks)]] * self.config.num_layers", ONE, *FIRST),
    edit(S01, "bf16 blocks", "k_block = torch.zeros(shape, dtype=self.model.dtype",
         "k_block = torch.zeros(shape, dtype=torch.bfloat16", run([5, 9, 3, 1], 60), *FIRST),
    edit(S01, "tiled heads", "out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=self.mask, enable_gqa=True)",
         "k, v = (x.repeat(1, q.size(1) // x.size(1), 1, 1) for x in (k, v))\n"
         "        out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=self.mask)",
         GROUPS, "shared_kv_heads"),
    # 02, preallocated gather
    edit(S02, "every sequence into row 0", "k_batch[i], v_batch[i])", "k_batch[0], v_batch[0])", MIXED, *TOKENS),
    edit(S02, "empty_like for zeros_like, once", "v_batch = torch.zeros_like(k_batch)", "v_batch = k_batch", ONE, *FIRST),
    edit(S02, "one token short", "seq.num_cached_tokens):\n            out_k", "seq.num_cached_tokens - 1):\n            out_k",
         ONE, *FIRST),
    edit(S02, "a block's end for the sequence's", "out_v[:, start:end, :] = v_block[:, : end - start, :]",
         "out_v[:, start:end, :] = v_block[:, start - end :, :]", ONE, *FIRST),
    # 03, select-based append
    edit(S03, "the last cached for the new", "new = k_batch.size(2) - 1", "new = k_batch.size(2) - 2", ONE, *FIRST),
    edit(S03, "the first sequence's token for all", "self.append_token(seq, layer, k_step[i], v_step[i])",
         "self.append_token(seq, layer, k_step[i], v_step[0])", MIXED, *TOKENS),
    edit(S03, "the token at each sequence's own length", "k_step[i], v_step[i])",
         "k_batch[i, :, seq.num_cached_tokens], v_step[i])", MIXED, *TOKENS),
    # 04, vectorised gather
    edit(S04, "// for % in the prompt", "self.v_cache[layer][blocks, tokens % self.block_size] = v",
         "self.v_cache[layer][blocks, tokens // self.block_size] = v", ONE, *FIRST),
    edit(S04, "stale width", "width = self.tables.blocks_for(longest)", "width = self.tables.blocks_for(longest - 1)",
         SMALL_BLOCKS, *TOKENS, *EDGES),
    edit(S04, "layer 0's tables", "(self.tables.of(seq.seq_id, layer) + [0] * width)",
         "(self.tables.of(seq.seq_id, 0)[::-1] + [0] * width)", ONE_SMALL, *EDGES),
    edit(S04, "layers swapped in append", "self.v_cache[layer][blocks[layer], slots] = v_batch.select(2, new)",
         "self.v_cache[-1][blocks[layer], slots] = v_batch.select(2, new)", ONE, *FIRST),
    edit(S04, "slot of the longest", "for _, slot in places]", "for _, slot in [max(places)] * len(places)]", MIXED, *TOKENS),
    edit(S04, "transposes the wrong dims", "v_pool[block, slots].transpose(1, 2))",
         "v_pool[block, slots].reshape(*block.shape[:1], -1, *block.shape[1:], v_pool.size(-1)))", ONE, *FIRST),
    # 05, block tables
    edit(S05, "one column short", "used = self.tables.blocks_for(max(lengths) + 1)",
         "used = self.tables.blocks_for(max(lengths))", SMALL_BLOCKS, *EDGES, *TOKENS),
    edit(S05, "<= context_lens", "index * block_size + slots < context_lens", "index * block_size + slots <= context_lens",
         ONE, *FIRST),
    edit(S05, "no shrink of the sum", "total = total * shrink + weights.sum(-1)", "total = total + weights.sum(-1)",
         ONE, *FIRST),
    edit(S05, "no shrink of out", "out = out * shrink[..., None] +", "out = out +", ONE, *FIRST),
    edit(S05, "min for max", "new_top = torch.maximum(top, scores.amax(-1))", "new_top = torch.minimum(top, scores.amax(-1))",
         run([63], 9), *EDGES),
    edit(S05, "head_dim without the root", "* head_dim**-0.5", "* head_dim**-1", ONE, *FIRST),
    edit(S05, "scale of 8", "* head_dim**-0.5", "* 8**-0.5", run([5, 2], 9, "llama"), "odd_shapes", "llama_families",
         "long_sequences"),
    edit(S05, "heads interleaved", "q.float().view(batch_size, num_kv_heads, num_heads // num_kv_heads, head_dim)",
         "q.float().view(batch_size, num_heads // num_kv_heads, num_kv_heads, head_dim).transpose(1, 2)",
         GROUPS, "shared_kv_heads", *FIRST),
    edit(S05, "a table of the pool's width", "self.max_blocks = min(num_blocks, self.tables.blocks_for(c.max_model_len))",
         "self.max_blocks = min(num_blocks, c.max_model_len // block_size)", run([40], 4, "groups of 3", block_size=16),
         "last_position", "any_block_size"),
    edit(S05, "room for one sequence less", "size = c.num_layers * max_num_seqs * self.max_blocks",
         "size = c.num_layers * (max_num_seqs - 1) * self.max_blocks", run([3] * 4, 3, max_num_seqs=4),
         "can_be_made", "batch_grows_and_shrinks", *FIRST),
    edit(S05, "lengths clamped to 200", "self.block_tables[layer], self.context_lens", "self.block_tables[layer], self.context_lens.clamp(max=200)",
         run([400], 20, "long", num_blocks=16), "long_sequences", "many_blocks", "half_precision"),
    # 06, block-table cache
    edit(S06, "rows of the first layer", "self.padded_row(self.tables.of(seq.seq_id, layer))",
         "self.padded_row(self.tables.of(seq.seq_id, layer)[::-1])", ONE_SMALL, *EDGES),
    edit(S06, "stacks along the layers", "dim=1, out=out)", "dim=1, out=out).copy_(out.flip(1))", MIXED, "rows_in_order", *TOKENS),
    # 07, the kernel
    edit(S07, "k's stride for v", "*k.stride()[:2], *v.stride()[:2],", "*k.stride()[:2], *k.stride()[:2],",
         run([5, 2], 4, "llama"), "llama_families"),
    edit(S07, "pads count as heads", "group[None, :]\n\n    # Upcast", "0 * group[None, :]\n\n    # Upcast",
         run([5, 2], 4, "gpt2, 2 KV heads"), "shared_kv_heads", "odd_shapes"),
    edit(S07, "the table's width for its stride", "*block_table.stride(), **shape", "block_table.size(1), 1, **shape",
         run([3, 9, 1], 3, block_size=4), *EDGES, *TOKENS),
)  # fmt: skip
