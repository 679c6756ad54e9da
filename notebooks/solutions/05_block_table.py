# --- 05.1
def build_table(block_lists, max_blocks):
    for blocks in block_lists:
        if len(blocks) > max_blocks:
            raise ValueError(f"a sequence has {len(blocks)} blocks, allowed: max_blocks={max_blocks}")
    rows = [blocks + [0] * (max_blocks - len(blocks)) for blocks in block_lists]
    return torch.tensor(rows, dtype=torch.int32)


# --- 05.2
def look_up(block_table, positions, block_size):
    columns = positions // block_size
    blocks = block_table.gather(1, columns[:, None]).squeeze(1).long()
    return blocks, positions % block_size


# --- 05.3
class MyPaged(BlockTable):
    @staticmethod
    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        block_size = k_cache.size(1)
        rows = []
        for i, n in enumerate(context_lens.tolist()):
            blocks = block_table[i, : -(-n // block_size)]
            keys = torch.cat([k_cache[blocks].flatten(0, 1)[:n], k[i : i + 1]])  # [n + 1, H_kv, D]
            values = torch.cat([v_cache[blocks].flatten(0, 1)[:n], v[i : i + 1]])
            rows.append(
                F.scaled_dot_product_attention(
                    q[i].unsqueeze(1), keys.transpose(0, 1), values.transpose(0, 1), enable_gqa=True
                )
            )
        return torch.stack(rows).squeeze(2)
