# --- 11.1
def masked(logits, allowed, counts, presence, frequency):
    penalised = logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    bits = (allowed[:, tokens // 32] >> (tokens % 32)) & 1
    return torch.where(bits.bool(), penalised, -torch.inf)


# --- 11.2
def choose(logits, temperature, noise):
    is_drawn = temperature > 0
    probs = torch.softmax(logits / torch.where(is_drawn, temperature, 1.0)[:, None], dim=-1)
    return torch.where(is_drawn, (probs / noise).argmax(dim=-1), logits.argmax(dim=-1))


# --- 11.3
from roseinfer.sampling import distribution, finite_temperature, is_filtered


class MyFusedStep(FusedStep):
    def choose(self, logits, seqs):
        largest, tokens = logits.max(dim=-1)
        rows = [row for row, seq in enumerate(seqs) if seq.params.temperature > 0]
        if rows:
            drawn = [seqs[row] for row in rows]
            probs = self.distribution((logits[rows] - largest[rows, None]).float(), [seq.params for seq in drawn])
            tokens[rows] = exponential_race(probs, self.noise(probs, drawn))
        return torch.where(largest.isfinite(), tokens, -1)

    def distribution(self, logits, params):
        filtered = [row for row, p in enumerate(params) if is_filtered(p)]
        column = partial(torch.tensor, device=logits.device)
        return distribution(
            logits,
            column([finite_temperature(p) for p in params]),
            column(filtered) if filtered else None,
            column([params[row].top_k for row in filtered]),
            column([params[row].top_p for row in filtered]),
        )


# --- 11.4
def write_ids(prompts, buffer):
    limits, arrays = np.iinfo(np.int32), [np.asarray(prompt) for prompt in prompts]
    n = sum(map(len, arrays))
    if n > len(buffer):
        raise ValueError(f"prompts have {n} tokens, allowed: {len(buffer)}")
    for ids in arrays:
        if ids.dtype.kind not in "iu" or ids.min() < limits.min or ids.max() > limits.max:
            raise ValueError(f"prompts must be whole numbers that fit into int32, got {ids}")
    buffer[:n] = np.concatenate(arrays)
    return buffer[:n]
