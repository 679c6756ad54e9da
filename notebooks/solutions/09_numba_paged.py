# --- 09.1
def busiest(lengths, num_kv_heads, threads):
    tokens = lengths * num_kv_heads  # of each task, in the order of their numbers
    least, longer = divmod(len(tokens), threads)
    starts = [t * least + min(t, longer) for t in range(threads + 1)]
    return max(sum(tokens[a:b]) for a, b in zip(starts, starts[1:], strict=False))


# --- 09.2
@njit(parallel=True)
def my_loop(out, q, k, v, k_cache, v_cache, block_table, context_lens, scale):
    num_seqs, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    group = num_heads // k_cache.shape[2]
    for task in prange(num_seqs * num_heads):
        head, seq = task // num_seqs, task % num_seqs
        kv_head = head // group
        top = np.float32(0)
        for d in range(head_dim):
            top += q[seq, head, d] * k[seq, kv_head, d]
        top *= scale
        total = np.float32(1)
        acc = v[seq, kv_head].copy()
        for position in range(context_lens[seq]):
            block, slot = block_table[seq, position // block_size], position % block_size
            score = np.float32(0)
            for d in range(head_dim):
                score += q[seq, head, d] * k_cache[block, slot, kv_head, d]
            score *= scale
            new_top = max(top, score)
            shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
            top = new_top
            total = total * shrink + weight
            for d in range(head_dim):
                acc[d] = acc[d] * shrink + weight * v_cache[block, slot, kv_head, d]
        for d in range(head_dim):
            out[seq, head, d] = acc[d] / total


# --- 09.3
def to_bfloat16(x):
    bits = x.view(np.uint32)
    upper = (bits >> 16).astype(np.uint16)
    rounded = ((bits + (0x7FFF + (upper & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), upper | np.uint16(0x0040), rounded)
