# --- a1.1
def attend(query, keys, values):
    scores = keys @ query / query.size(0) ** 0.5
    return scores.softmax(dim=0) @ values


# --- a1.2
def causal_attention(q, k, v):
    T, D = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) / D**0.5
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    return scores.masked_fill(~visible, float("-inf")).softmax(dim=-1) @ v


# --- a1.3
def grouped_attention(q, k, v):
    group = q.size(0) // k.size(0)
    return causal_attention(q, k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0))


# --- a1.4
def rope(x, positions, theta):
    D = x.size(-1)
    frequencies = theta ** (-2 * torch.arange(D // 2) / D)
    angles = (positions[:, None] * frequencies)[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
