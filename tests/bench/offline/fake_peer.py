"""A peer that follows serve.py's wire and knows nothing of language: token i is the prompt's last one + i, + 1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[3] / "roseinfer" / "bench" / "peers"))

from serve import Tokens, read_model, serve  # noqa: E402


class Counting:
    def __init__(self, source: Path, precision: str, threads: int) -> None:
        if precision == "float16":
            raise ValueError("no float16 on this CPU")
        if precision == "bfloat16":
            sys.exit("a library that cannot be loaded")
        self.vocab_size = 10  # of a GGUF file, which it does not read
        if source.is_dir():
            shape, weights = read_model(source)
            self.vocab_size = shape["vocab_size"]
            assert weights["wte.weight"].shape == (self.vocab_size, shape["hidden_size"])
        self.prepared = 0
        left = [name for name in os.environ if name.startswith(("PYTHONPATH", "OMP_"))]
        self.versions = {"counting": "1.0", "threads": str(threads), "left": ",".join(left)}

    def prepare(self, prompts: Tokens, max_tokens: int) -> None:
        self.prepared += 1

    def generate(self, prompts: Tokens, max_tokens: int) -> Tokens:
        os.write(1, b"a C library's greeting\n")
        if len(prompts) == 4:
            raise RuntimeError("out of memory")
        assert self.prepared
        return [[(prompt[-1] + 1 + i) % self.vocab_size for i in range(max_tokens)] for prompt in prompts]


if __name__ == "__main__":
    serve(Counting)
