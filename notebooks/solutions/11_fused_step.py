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


# --- 11.5
import torch

from roseinfer.sampling import distribution, exponential_race, finite_temperature, is_filtered
from stages import FusedStep


class MyStep(FusedStep):
    @torch.inference_mode()
    def first_tokens(self, seqs):
        tokens = []
        with self.claimed(seqs):
            while len(tokens) < len(seqs):
                group, room = [], self.max_num_tokens
                for seq in seqs[len(tokens) :]:
                    room -= len(seq)
                    if room < 0:
                        break
                    group.append(seq)
                tokens += self.prefill_together(group)
        return tokens

    def prefill_together(self, seqs):
        lengths = [len(seq) for seq in seqs]
        token_ids, positions = self.write_inputs(seqs, lengths)
        hidden = self.model(token_ids, positions, self.write_tables(seqs, lengths))
        last_rows = torch.tensor(lengths, device=hidden.device).cumsum(0) - 1
        return self.read(self.choose(self.model.logits(hidden[last_rows]), seqs), seqs)

    @torch.inference_mode()
    def next_tokens(self, seqs):
        logits = self.decode(seqs)
        try:
            return self.read(self.choose(logits, seqs), seqs)
        except BaseException:
            for seq in seqs:
                seq.num_cached_tokens -= 1
            raise

    def choose(self, logits, seqs):
        largest, tokens = logits.max(dim=-1)
        rows = [row for row, seq in enumerate(seqs) if seq.params.temperature > 0]
        if rows:
            drawn = [seqs[row] for row in rows]
            probs = self.probabilities_of((logits[rows] - largest[rows, None]).float(), drawn)
            tokens[rows] = exponential_race(probs, self.noise(probs, drawn))
        return torch.where(largest.isfinite(), tokens, -1)

    def probabilities_of(self, logits, seqs):
        params, device = [seq.params for seq in seqs], logits.device
        temperature = torch.tensor([finite_temperature(p) for p in params], device=device)
        filtered = [row for row, p in enumerate(params) if is_filtered(p)]
        top_k = torch.tensor([params[row].top_k for row in filtered], device=device)
        top_p = torch.tensor([params[row].top_p for row in filtered], device=device)
        return distribution(logits, temperature, torch.tensor(filtered) if filtered else None, top_k, top_p)

    def read(self, tokens, seqs):
        token_ids = tokens.tolist()
        if -1 in token_ids:
            raise ValueError(f"the logits of sequence {seqs[token_ids.index(-1)].seq_id} are not finite")
        return token_ids
