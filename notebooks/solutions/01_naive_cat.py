# --- 01.1
def gather(blocks, num_tokens):
    return torch.cat(blocks, dim=1)[:, :num_tokens].unsqueeze(0)


# --- 01.2
def count_gather(num_layers, lengths):
    shorter = sum(n < max(lengths) for n in lengths)
    blocks = sum(-(-n // 64) for n in lengths)
    return {
        "zeros": num_layers * (len(lengths) + 2 * shorter),
        "zeros_like": num_layers * len(lengths),
        "copy_": 2 * num_layers * blocks,
        "cat": 2 * num_layers * (1 + shorter),
    }


# --- 01.3
class NoZeros(NaiveCat):
    def gather_sequence(self, seq, layer):
        ks, vs = [], []
        for start, end, (k_block, v_block) in self.filled_blocks(seq, layer, seq.num_cached_tokens):
            ks.append(k_block[:, : end - start])
            vs.append(v_block[:, : end - start])
        return torch.cat(ks, dim=1).unsqueeze(0), torch.cat(vs, dim=1).unsqueeze(0)
