# --- 13.1
def cost_of(batch_sizes, buckets):
    used = []
    for size in batch_sizes:
        large_enough = [bucket for bucket in buckets if bucket >= size]
        if large_enough:
            used.append((size, min(large_enough)))
    padding_rows = sum(bucket - size for size, bucket in used)
    captures = len({bucket for _, bucket in used})
    return padding_rows, captures


# --- 13.2
def fill_up(inputs, num_seqs, num_tokens, bucket, dummy_block, block_size):
    missing = bucket - num_tokens
    inputs["slot_mapping"][num_tokens:bucket] = dummy_block * block_size
    inputs["query_start"][num_seqs + 1 : num_seqs + missing + 1] = range(num_tokens + 1, bucket + 1)
    inputs["context_lens"][num_seqs : num_seqs + missing] = 1
    inputs["block_tables"][num_seqs : num_seqs + missing, 0] = dummy_block


# --- 13.3
def make_step(scores, token_ids, positions, banned):
    banned_ids = torch.tensor(banned)  # made once, and found by every replay

    def step():
        allowed = scores[token_ids]
        allowed[:, banned_ids] = -torch.inf
        allowed[:, 0] += positions
        tokens = allowed.argmax(dim=-1)
        return torch.where(token_ids == 0, 0, tokens)

    return step


# --- 13.4
class WarmGraphs(Graphs):
    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        with torch.inference_mode():
            for bucket in sorted(self.buckets, reverse=True):
                self.write_padding(0, bucket)
                if self.device_buffer is not self.host_buffer:
                    self.device_buffer.copy_(self.host_buffer)
                self.graph_of(bucket)
