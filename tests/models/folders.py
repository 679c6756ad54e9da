"""Model folders as transformers writes them, with something changed, and what loading them has to say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from roseinfer.models import ModelLoadError, load_model


def edit_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """edit changes the tensors, by their names."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load_model(str(folder))
