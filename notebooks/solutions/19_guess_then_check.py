# --- 19.1
def ngram_draft(token_ids, num_tokens, longest=4, shortest=2):
    for size in range(longest, shortest - 1, -1):
        pattern = token_ids[-size:]
        for start in range(len(token_ids) - size - 1, -1, -1):
            after = start + size
            if token_ids[start:after] == pattern:
                return token_ids[after : after + num_tokens]
    return []


# --- 19.2
def accept(draft, chosen):
    num_right = 0
    while num_right < len(draft) and draft[num_right] == chosen[num_right]:
        num_right += 1
    return chosen[: num_right + 1]


# --- 19.3
def verify(draft, draft_probs, model_probs, rng):
    vocab_size = model_probs.shape[1]
    for i, token in enumerate(draft):
        p, q = model_probs[i], draft_probs[i]
        if rng.random() >= p[token] / q[token]:
            rest = np.maximum(p - q, 0)
            return draft[:i] + [rng.choice(vocab_size, p=rest / rest.sum())]
    return draft + [rng.choice(vocab_size, p=model_probs[-1])]


# --- 19.4
def best_num_tokens(seconds, acceptance):
    expected, speeds = 0.0, []
    for time in seconds:
        expected = 1 + acceptance * expected  # 1 + a + a**2 + ...: one term more for each drafted token
        speeds.append(expected / time)
    return speeds.index(max(speeds))
