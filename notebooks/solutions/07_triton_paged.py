# --- 07.1
def merge(a, b):
    new_top = torch.maximum(a[0], b[0])
    shift = torch.where(new_top == -torch.inf, 0.0, new_top)
    total, acc = 0.0, 0.0
    for top, part_total, part_acc in (a, b):
        shrink = torch.exp(top - shift)
        total = total + part_total * shrink
        acc = acc + part_acc * shrink[:, None]
    return new_top, total, acc


# --- 07.2
@triton_mode.jit
def my_kernel(
    out, q, k, v, k_cache, v_cache, block_table, context_lens, scale, table_row,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, DIM_PAD)
    real = dim < HEAD_DIM

    q_at = (seq * NUM_HEADS + head) * HEAD_DIM + dim
    new_at = (seq * NUM_KV_HEADS + kv_head) * HEAD_DIM + dim
    query = tl.load(q + q_at, mask=real, other=0.0).to(tl.float32) * scale
    new_k = tl.load(k + new_at, mask=real, other=0.0).to(tl.float32)
    acc = tl.load(v + new_at, mask=real, other=0.0).to(tl.float32)
    top = tl.sum(query * new_k, axis=0)
    total = 1.0

    num_cached = tl.load(context_lens + seq)
    for start in range(0, num_cached, BLOCK_SIZE):
        block = tl.load(block_table + seq * table_row + start // BLOCK_SIZE).to(tl.int64)
        cached = start + slot < num_cached
        at = ((block * BLOCK_SIZE + slot[:, None]) * NUM_KV_HEADS + kv_head) * HEAD_DIM + dim[None, :]
        readable = cached[:, None] & real[None, :]
        keys = tl.load(k_cache + at, mask=readable, other=0.0).to(tl.float32)
        values = tl.load(v_cache + at, mask=readable, other=0.0).to(tl.float32)

        scores = tl.where(cached, tl.sum(query[None, :] * keys, axis=1), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        weights = tl.exp(scores - new_top)
        shrink = tl.exp(top - new_top)
        acc = acc * shrink + tl.sum(weights[:, None] * values, axis=0)
        total = total * shrink + tl.sum(weights, axis=0)
        top = new_top

    tl.store(out + q_at, (acc / total).to(out.dtype.element_ty), mask=real)


# --- 07.3
def cost(lengths, num_kv_heads, head_dim, tile, bytes_per_value, num_parts):
    programs = len(lengths) * num_kv_heads * num_parts
    most_tiles = -(-max(lengths) // tile)
    most_tiles = -(-most_tiles // num_parts)  # of the program with the most work
    loaded = sum(lengths) * 2 * num_kv_heads * head_dim * bytes_per_value
    return programs, most_tiles, loaded
