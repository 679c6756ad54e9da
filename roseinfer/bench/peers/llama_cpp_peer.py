"""llama.cpp behind serve.py: the weights as GGUF, and its own batches of several sequences, one decode call a step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from gguf_file import PRECISIONS, Stored, write
from serve import Tokens, serve

ROOM = 256  # tokens: llama.cpp rounds a sequence's room up to so many
MOST_TOKENS = 512  # of one pass; a longer prompt takes several


def loaded(path: Path) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.use_mmap = False  # a file that was written for this is about to go
    if not (model := llama_cpp.llama_model_load_from_file(str(path).encode(), params)):
        raise RuntimeError(f"llama.cpp could not load {path.name}")
    return model


class LlamaCpp:
    """Keeps one context, made again for a batch of another shape."""

    def __init__(self, source: Path, precision: str, threads: int) -> None:
        """Load a GGUF file as it is, or write one in that precision first."""
        self.versions = {"llama_cpp_python": llama_cpp.__version__}
        self.threads, self.cache = threads, Stored.F16
        llama_cpp.llama_backend_init()
        if source.is_file():
            self.model = loaded(source)
        elif precision in PRECISIONS:
            stored, self.cache = PRECISIONS[precision]
            with tempfile.TemporaryDirectory() as written:
                write(source, path := Path(written) / "model.gguf", stored)
                self.model = loaded(path)
        else:
            raise ValueError(f"llama.cpp is run in {', '.join(PRECISIONS)}, not in {precision}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context, self.shape = None, (0, 0)

    def prepare(self, prompts: Tokens, max_tokens: int) -> None:
        longest = max(map(len, prompts)) + max_tokens
        shape = (len(prompts), -(-longest // ROOM) * ROOM)
        if shape != self.shape:
            self.make_context(*shape)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def make_context(self, num_seqs: int, num_tokens: int) -> None:
        if self.context:
            llama_cpp.llama_free(self.context)
        self.context, self.shape = None, (0, 0)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = num_seqs
        params.n_ctx = num_seqs * num_tokens
        params.kv_unified = False  # a stream of its own for each sequence, as none shares a prefix
        params.n_batch = params.n_ctx
        params.n_ubatch = MOST_TOKENS
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = int(self.cache)
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp made no context for {num_seqs} sequences of {num_tokens} tokens")
        self.shape = (num_seqs, num_tokens)

    def generate(self, prompts: Tokens, max_tokens: int) -> Tokens:
        lengths, seqs = np.array([len(prompt) for prompt in prompts]), np.arange(len(prompts))
        positions = np.concatenate([np.arange(length) for length in lengths])
        new = self.decode(np.concatenate(prompts), positions, seqs.repeat(lengths), lengths.cumsum() - 1)
        outputs = [new]
        for step in range(max_tokens - 1):
            new = self.decode(new, lengths + step, seqs, seqs)
            outputs.append(new)
        return np.stack(outputs, axis=1).tolist()

    def decode(self, tokens: np.ndarray, positions: np.ndarray, seqs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Decode a flat batch in one call; return the likeliest token after each of `rows`. seqs: each token's own."""
        count = len(tokens)
        batch = llama_cpp.llama_batch_init(count, 0, 1)
        try:
            view = np.ctypeslib.as_array
            batch.n_tokens = count
            view(batch.token, (count,))[:] = tokens
            view(batch.pos, (count,))[:] = positions
            view(batch.n_seq_id, (count,))[:] = 1
            for i, seq in enumerate(seqs.tolist()):
                batch.seq_id[i][0] = seq
            wanted = view(batch.logits, (count,))
            wanted[:] = 0
            wanted[rows] = 1
            if status := llama_cpp.llama_decode(self.context, batch):
                raise RuntimeError(f"llama_decode returned {status}")
            logits = llama_cpp.llama_get_logits(self.context)
            return view(logits, (len(rows), self.vocab_size)).argmax(axis=1)
        finally:
            llama_cpp.llama_batch_free(batch)


if __name__ == "__main__":
    serve(LlamaCpp)
