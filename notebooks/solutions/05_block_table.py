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


# --- 05.4
import torch
import torch.nn.functional as F

from stages import BlockTable


class MyBlockTable(BlockTable):
    def write_prompt(self, seq, layer, k, v):
        blocks = torch.tensor(self.tables.of(seq.seq_id, layer), device=k.device)
        positions = torch.arange(len(k), device=k.device)
        self.write(layer, blocks[positions // self.block_size], positions % self.block_size, k, v)

    def build_block_tables(self, seqs, out):
        out.zero_()
        for layer, table in enumerate(out):
            for row, seq in zip(table, seqs, strict=True):
                blocks = self.tables.of(seq.seq_id, layer)
                row[: len(blocks)] = torch.tensor(blocks)

    def append(self, seqs, step):
        positions = step.context_lens.long()
        columns = positions // self.block_size
        for layer, (k, v) in enumerate(step.new):
            blocks = step.block_tables[layer].gather(1, columns[:, None]).squeeze(1).long()
            self.write(layer, blocks, positions % self.block_size, k, v)

    def write(self, layer, blocks, slots, k, v):
        self.k_cache[layer][blocks, slots] = k
        self.v_cache[layer][blocks, slots] = v

    @staticmethod
    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        block_size = k_cache.size(1)
        rows = []
        for i, n in enumerate(context_lens.tolist()):
            blocks = block_table[i, : -(-n // block_size)]
            keys = torch.cat([k_cache[blocks].flatten(0, 1)[:n], k[i : i + 1]])  # [n + 1, H_kv, D]
            values = torch.cat([v_cache[blocks].flatten(0, 1)[:n], v[i : i + 1]])
            row = F.scaled_dot_product_attention(
                q[i].unsqueeze(1), keys.transpose(0, 1), values.transpose(0, 1), enable_gqa=True
            )
            rows.append(row.squeeze(1))
        return torch.stack(rows)
