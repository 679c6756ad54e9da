# --- 00.1
def tokens_computed(prompt_len, new_tokens):
    return sum(prompt_len + step for step in range(new_tokens)), prompt_len + new_tokens - 1


# --- 00.2
from roseinfer.sequence import SamplingParams


def my_generate(stage, prompt_ids, max_tokens):
    seq = Sequence(prompt_ids, SamplingParams(max_tokens=max_tokens))
    logits = stage.prefill(seq)
    seq.append(int(logits.argmax()))
    while len(seq.output_ids) < max_tokens:
        seq.append(int(stage.decode([seq])[0].argmax()))
    stage.free(seq)
    return seq.output_ids


# --- 00.3
def kv_bytes(config, num_tokens, bytes_per_value):
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * num_tokens * bytes_per_value
