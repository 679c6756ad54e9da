"""GgufFile: what a GGUF file says of its model, and its tensors, read as data alone.

GGUF is llama.cpp's format: metadata by name, then a table of tensors, then their numbers, often in few bits (ggml's
docs/gguf.md). The package `gguf` knows the kinds of numbers and how to compute their values. Its reader takes two
seconds for a vocabulary of 50,000 tokens and trusts the file, so the header is read here: no count, length or offset is
used before it is compared with what the file has left.

The header alone is mapped, while it is read. A mapping's pages would count as memory of the process beside the copies
that are made of them, and reading one of a file that was cut meanwhile would end it.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOAT32, TEXT, ARRAY = 6, 8, 9
MOST_DIMENSIONS = 4  # ggml's own limit
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class StoredTensor(NamedTuple):
    """Where a tensor lies in the file. shape: as PyTorch has it. kind: of its numbers, such as "Q4_1"."""

    name: str
    shape: tuple[int, ...]
    kind: str
    begin: int
    nbytes: int

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of its bytes: those of a row in place of the row's numbers."""
        rows = self.shape[:-1]
        return *rows, self.nbytes // max(prod(rows), 1)


class GgufFile:
    """A GGUF file, or all parts of a split one. No tensor is read before it is asked for.

    metadata: by name. stored: what the file says of each tensor, by name.

    Raises ValueError for what is no whole GGUF file, for a part that is missing, for a kind of numbers that the
    package gguf does not know, and without that package.
    """

    def __init__(self, path: Path) -> None:
        if find_spec("gguf") is None:
            raise ValueError("it takes the package gguf, which is not installed: `pip install '.[gguf]'`")
        self.path = path
        self._parts: dict[str, Path] = {}
        self._states: dict[Path, tuple[int, ...]] = {}  # of each part, when its header was read
        self.metadata: dict[str, Any] = {}
        self.stored: dict[str, StoredTensor] = {}
        for part in parts_of(path):
            self._states[part] = state_of(part.stat())
            with _mapped(part) as data:
                metadata, tensors = _Header(data).read()
            self.metadata = metadata | self.metadata  # the first part has all of it
            if twice := sorted(tensors.keys() & self.stored.keys()):
                raise ValueError(f"{part.name}: tensor {twice[0]} is in another part, too")
            self.stored |= tensors
            self._parts |= dict.fromkeys(tensors, part)
        if (count := self.metadata.get("split.tensors.count", len(self.stored))) != len(self.stored):
            raise ValueError(f"split.tensors.count is {count}, and the parts have {len(self.stored)} tensors")

    def raw(self, name: str) -> np.ndarray:
        """Read the bytes of a tensor, uint8 [rows, bytes of a row], or [bytes] for a vector.

        Raises ValueError where the file is another by now, and OSError where it is gone.
        """
        tensor, part = self.stored[name], self._parts[name]
        with part.open("rb") as opened:
            data = np.fromfile(opened, np.uint8, tensor.nbytes, offset=tensor.begin)
            is_same = state_of(os.fstat(opened.fileno())) == self._states[part]
        if len(data) < tensor.nbytes:
            raise ValueError(f"{part.name} was changed while it was read: tensor {name} is truncated")
        if not is_same:
            raise ValueError(f"{part.name} was changed while it was read: tensor {name} may be of another model")
        return data.reshape(tensor.raw_shape)

    def computed(self, name: str) -> Tensor:
        """Return a tensor in float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor, raw = self.stored[name], self.raw(name)
        if tensor.kind == "F32":
            return torch.from_numpy(raw.view(np.float32))
        values = dequantize(raw, GGMLQuantizationType[tensor.kind])
        return torch.from_numpy(np.asarray(values, np.float32).reshape(tensor.shape))

    def empty(self, name: str) -> Tensor:
        """Return a tensor of that shape on the meta device, without its numbers."""
        return torch.empty(self.stored[name].shape, device="meta")


def state_of(stat: os.stat_result) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced or written."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def parts_of(path: Path) -> list[Path]:
    """Return the parts of a split file, from the first on, or the file alone. Raises ValueError for a missing part."""
    match = SPLIT.search(path.name)
    if match is None:
        return [path]
    stem, number = path.name[: match.start()], int(match[2])
    parts = [path.with_name(f"{stem}-{n:05d}-of-{number:05d}.gguf") for n in range(1, number + 1)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ValueError(f"it is one of {number} parts, and {missing[0]} is not beside it")
    return parts


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path.name} does not begin with {MAGIC.decode()}: it is not a GGUF file")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class _Header:
    """Reads the header of a file from its beginning. at: the byte that is read next."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, len(MAGIC)

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        """Return the metadata and what is said of each tensor."""
        version, num_tensors, num_values = self._numbers("IQQ")
        if version not in VERSIONS:
            raise ValueError(f"it is GGUF of version {version}, supported: {', '.join(map(str, VERSIONS))}")
        self._require(13 * num_values + 24 * num_tensors)  # the least that they take
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            name = self._text()
            metadata[name] = self._value(self._numbers("I")[0])
        tensors = [self._tensor() for _ in range(num_tensors)]
        begin = _aligned(self.at, metadata.get("general.alignment", 32))
        found: dict[str, StoredTensor] = {}
        for tensor in tensors:
            tensor = tensor._replace(begin=begin + tensor.begin)
            if tensor.begin + tensor.nbytes > len(self.data):
                raise ValueError(
                    f"tensor {tensor.name} ends at byte {tensor.begin + tensor.nbytes:,}, and the file has "
                    f"{len(self.data):,}: it is truncated"
                )
            if tensor.name in found:
                raise ValueError(f"tensor {tensor.name} is there twice")
            found[tensor.name] = tensor
        return metadata, found

    def _require(self, num_bytes: int) -> None:
        if num_bytes > len(self.data) - self.at:
            raise self._truncated()

    def _truncated(self) -> ValueError:
        return ValueError(f"its header is truncated at byte {len(self.data):,}, or not GGUF's")

    def _numbers(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        self._require(struct.calcsize(form))
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, number: int) -> list[str]:
        """Read texts, each after its length. A vocabulary has 100,000, so nothing is called for one of them alone."""
        data, at, size, texts = self.data, self.at, len(self.data), []
        for _ in range(number):
            begin = at + 8
            at = begin + int.from_bytes(data[at:begin], "little")
            if at > size:
                raise self._truncated()
            texts.append(data[begin:at].decode())
        self.at = at
        return texts

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == FLOAT32:  # what was meant by it: 1e-05, not 9.999999747378752e-06
            return float(str(np.float32(self._numbers("f")[0])))
        if kind in NUMBERS:
            return self._numbers(NUMBERS[kind])[0]
        if kind != ARRAY:
            raise ValueError(f"its header has a value of an unknown type, {kind}")
        of, length = self._numbers("IQ")
        if of in NUMBERS:
            self._require(length * struct.calcsize(f"<{NUMBERS[of]}"))
            return list(self._numbers(f"{length}{NUMBERS[of]}"))
        if of != TEXT:
            raise ValueError(f"its header has an array of an unknown type, {of}")
        return self._texts(length)

    def _tensor(self) -> StoredTensor:
        """Read an entry of the table; its `begin` is from the beginning of all tensors."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, [num_dims] = self._text(), self._numbers("I")
        if not 1 <= num_dims <= MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dims} dimensions, allowed: 1 to {MOST_DIMENSIONS}")
        sizes = self._numbers(f"{num_dims}Q")
        number, begin = self._numbers("IQ")
        if number not in {kind.value for kind in GGMLQuantizationType}:
            raise ValueError(f"tensor {name} has numbers of type {number}, which the package gguf does not know")
        kind = GGMLQuantizationType(number)
        in_block, block_bytes = GGML_QUANT_SIZES[kind]
        if sizes[0] % in_block:
            raise ValueError(
                f"tensor {name} has rows of {sizes[0]} numbers, and {kind.name} comes in blocks of {in_block}"
            )
        return StoredTensor(name, sizes[::-1], kind.name, begin, prod(sizes) // in_block * block_bytes)


def _aligned(at: int, step: object) -> int:
    if not isinstance(step, int) or step < 1 or step & (step - 1):
        raise ValueError(f"general.alignment must be a power of 2, got {step!r}")
    return -(-at // step) * step
