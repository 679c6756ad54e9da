"""One operator, constant, index or type changed in the source of a stage: what a slip of the hand leaves behind.

`python -m tools.mutants` makes every such slip in the exercises' solutions, which the same promises judge.
"""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from stages import BlockTable, BlockTableCache, NaiveCat, SelectAppend, VectorizedGather

from .mutant import edit

S01, S03, S04, S05, S06 = NaiveCat, SelectAppend, VectorizedGather, BlockTable, BlockTableCache

MUTANTS = (
    edit(S01, "v for k in the cat", "v = torch.cat([past_v, v.unsqueeze(2)], dim=2)",
         "v = torch.cat([past_k, v.unsqueeze(2)], dim=2)", "one_sequence"),
    edit(S01, "mask <=", "(keys < lengths[:, None])", "(keys <= lengths[:, None])", "mixed_lengths"),
    edit(S01, "slot of 64", "divmod(seq.num_cached_tokens, self.block_size)", "divmod(seq.num_cached_tokens, 64)", "small_blocks"),
    edit(S01, "k written twice", "        v_block[:, slot, :] = v\n", "        v_block[:, slot, :] = k\n", "equals_transformers"),
    edit(S01, "bf16 blocks", "k_block = torch.zeros(shape, dtype=self.model.dtype",
         "k_block = torch.zeros(shape, dtype=torch.bfloat16", "one_sequence"),
    edit(S01, "tiled heads", "out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=self.mask, enable_gqa=True)",
         "k, v = (x.repeat(1, q.size(1) // x.size(1), 1, 1) for x in (k, v))\n"
         "        out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=self.mask)", "shared_kv_heads"),
    edit(S03, "the first sequence's token for all", "self.append_token(seq, layer, k_step[i], v_step[i])",
         "self.append_token(seq, layer, k_step[i], v_step[0])", "equal_lengths"),
    edit(S04, "layer 0's tables", "(self.tables.of(seq.seq_id, layer) + [0] * width)",
         "(self.tables.of(seq.seq_id, 0)[::-1] + [0] * width)", "small_blocks"),
    edit(S05, "min for max", "new_top = torch.maximum(top, scores.amax(-1))", "new_top = torch.minimum(top, scores.amax(-1))",
         "block_edges"),
    edit(S05, "scale of 8", "* head_dim**-0.5", "* 8**-0.5", "llama_families"),
    edit(S05, "a table of the pool's width", "self.max_blocks = min(num_blocks, self.tables.blocks_for(c.max_model_len))",
         "self.max_blocks = min(num_blocks, c.max_model_len // block_size)", "last_position"),
    edit(S06, "stacks along the layers", "dim=1, out=out)", "dim=1, out=out).copy_(out.flip(1))", "rows_in_order"),
)  # fmt: skip
