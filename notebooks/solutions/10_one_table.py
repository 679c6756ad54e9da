# --- 10.1
from itertools import accumulate


def flat_batch(block_lists, num_cached, num_new, block_size):
    positions, slot_mapping = [], []
    for blocks, cached, new in zip(block_lists, num_cached, num_new, strict=True):
        for position in range(cached, cached + new):
            column, offset = divmod(position, block_size)
            positions.append(position)
            slot_mapping.append(blocks[column] * block_size + offset)
    return positions, slot_mapping, [0, *accumulate(num_new)]


# --- 10.2
def write_then_attend(q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables):
    block_size = k_cache.size(2)
    blocks, offsets = slot_mapping.long() // block_size, slot_mapping.long() % block_size
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v

    out, starts = torch.empty_like(q), query_start.tolist()
    for i, length in enumerate(context_lens.tolist()):
        table = block_tables[i, : -(-length // block_size)].long()
        keys, values = (cache[table].transpose(0, 1).flatten(1, 2)[:, :length] for cache in (k_cache, v_cache))
        queries = q[starts[i] : starts[i + 1]].transpose(0, 1)  # [H, n, D]
        position = torch.arange(length - queries.size(1), length)
        seen = torch.arange(length) <= position[:, None]
        attended = F.scaled_dot_product_attention(queries[None], keys[None], values[None], seen, enable_gqa=True)
        out[starts[i] : starts[i + 1]] = attended[0].transpose(0, 1)
    return out


# --- 10.3
class KeptRows(OneTable):
    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.in_row = {}  # row -> the version that it was written from

    def write_row(self, row, seq):
        version = self.tables.version(seq.seq_id)
        if self.in_row.get(row) != version:
            super().write_row(row, seq)
            self.in_row[row] = version


# --- 10.4
from stages import OneTable


class MyAttend:
    def __init__(self, stage, num_tokens, num_seqs):
        given, self.stage = stage.inputs_on_device, stage
        self.inputs = (
            given["slot_mapping"][:num_tokens],
            given["query_start"][: num_seqs + 1],
            given["context_lens"][:num_seqs],
            given["block_tables"][:num_seqs],
        )
        self.out = stage.attended[:num_tokens]

    def __call__(self, layer, q, k, v):
        k_cache, v_cache = self.stage.pool[:, layer]
        return self.stage.attention(q, k, v, k_cache, v_cache, *self.inputs, self.out)


class MyOneTable(OneTable):
    def write_inputs(self, seqs, num_new):
        if self.copied:
            self.copied.synchronize()
        token_ids, positions = [], []
        for seq, n in zip(seqs, num_new, strict=True):
            first = seq.num_cached_tokens
            token_ids += seq.token_ids[first : first + n]
            positions += range(first, first + n)
        return self.fill("token_ids", token_ids), self.fill("positions", positions)

    def write_tables(self, seqs, num_new):
        slots, starts, lengths = [], [0], []
        for row, (seq, n) in enumerate(zip(seqs, num_new, strict=True)):
            blocks, first = self.tables.of(seq.seq_id, 0), seq.num_cached_tokens
            self.inputs_on_host["block_tables"][row, : len(blocks)] = blocks
            for position in range(first, first + n):
                column, offset = divmod(position, self.block_size)
                slots.append(blocks[column] * self.block_size + offset)
            starts.append(len(slots))
            lengths.append(first + n)
        self.fill("slot_mapping", slots)
        self.fill("query_start", starts)
        self.fill("context_lens", lengths)
        if self.copied:
            self.device_buffer.copy_(self.host_buffer, non_blocking=True)
            self.copied.record()
        return MyAttend(self, len(slots), len(seqs))

    def fill(self, name, values):
        self.inputs_on_host[name][: len(values)] = values
        return self.inputs_on_device[name][: len(values)]
