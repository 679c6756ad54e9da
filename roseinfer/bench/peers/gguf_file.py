"""A model as GGUF, the file that llama.cpp reads. As a script, for its server: gguf_file.py FOLDER FILE PRECISION.

Runs in the peers' own environment. FOLDER is one that roseinfer.bench.peers.weights wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Stored
from serve import read_model

# How matrices are stored, and the KV cache: in fp32 all of it, else as llama.cpp keeps it by default.
PRECISIONS = {
    "float32": (Stored.F32, Stored.F32),
    "float16": (Stored.F16, Stored.F16),
    "bfloat16": (Stored.BF16, Stored.F16),
    "int8": (Stored.Q8_0, Stored.F16),
    "int4": (Stored.Q4_0, Stored.F16),
}
NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def write(folder: Path, path: Path, stored: Stored, with_words: bool = False) -> None:
    """Write GPT-2 as GGUF: matrices as `stored`, all else in fp32, as llama.cpp's converter does.

    with_words: add a vocabulary of made-up words, without which llama.cpp's server does not start.
    """
    shape, weights = read_model(folder)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(shape["max_model_len"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_block_count(shape["num_layers"])
    writer.add_head_count(shape["num_heads"])
    writer.add_layer_norm_eps(shape["norm_eps"])
    writer.add_vocab_size(shape["vocab_size"])
    if with_words:
        add_words(writer, shape["vocab_size"])
    else:
        writer.add_tokenizer_model("no_vocab")
    for name, weight in weights.items():
        is_matrix = name.endswith("weight") and weight.ndim == 2 and not name.startswith("wpe")
        kind = stored if is_matrix else Stored.F32
        data = weight if kind == Stored.F32 else gguf.quants.quantize(weight, kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_words(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Add the words w0, w1, ... and one merge, which a vocabulary of this kind must have."""
    words = [f"w{number}" for number in range(vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_token_merges(["w 0"])
    writer.add_bos_token_id(vocab_size - 1)
    writer.add_eos_token_id(vocab_size - 1)


def gguf_name(name: str) -> str:
    """Translate a name: h.3.attn.c_proj.weight becomes blk.3.attn_output.weight."""
    part, kind = name.rsplit(".", 1)
    if not part.startswith("h."):
        return f"{NAMES[part]}.{kind}"
    _, layer, part = part.split(".", 2)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


if __name__ == "__main__":
    source, target, precision = sys.argv[1:]
    write(Path(source), Path(target), PRECISIONS[precision][0], with_words=True)
