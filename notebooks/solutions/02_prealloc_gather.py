# --- 02.1
def gather_into(blocks, num_tokens, out):
    for i, block in enumerate(blocks):
        start, end = 64 * i, min(64 * (i + 1), num_tokens)
        out[:, start:end] = block[:, : end - start]


# --- 02.2
class OneAllocation(PreallocGather):
    def build_batched_past(self, seqs, longest):
        c = self.config
        shape = (c.num_layers, 2, len(seqs), c.num_kv_heads, longest, c.head_dim)
        batch = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        past = []
        for layer in range(c.num_layers):
            k_batch, v_batch = batch[layer].unbind(0)
            for i, seq in enumerate(seqs):
                self.gather_sequence_into(seq, layer, k_batch[i], v_batch[i])
            past.append((k_batch, v_batch))
        return past


# --- 02.3
def padding(config, lengths, bytes_per_value):
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * bytes_per_value
    return token * sum(lengths), token * len(lengths) * max(lengths)
