"""The servers of a contest: this engine's, and llama.cpp's, on the same weights, each in its own process."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from roseinfer.models import Model

from ..contenders import ContenderFailed
from ..peers import write_model
from ..peers.process import ENVIRONMENT, HERE, OURS, PYTHON
from .client import Target
from .dialect import LLAMA
from .server_process import ServerProcess, engine_command, without_settings_of_ours

LLAMA_SERVER = ENVIRONMENT / "bin" / "llama-server"
KV_CACHE = {"float32": "f32", "int8": "f16"}  # of llama.cpp: what it has by default beside weights in 8 bits
BLOCK_SIZE = 16


@dataclass(frozen=True)
class ContestSetting:
    """What the servers of a contest have in common. spec: as load_model takes it. slots: requests that run at a time.

    most_tokens: prompt and output of the longest one. most_queued: requests that may wait.
    """

    spec: str
    precision: str
    slots: int
    most_tokens: int
    most_queued: int


def why_no_llama_server() -> str | None:
    """Say why llama.cpp's server cannot run; None once `make peers` has been run to its end."""
    return None if LLAMA_SERVER.is_file() else "llama-server is not there: `make peers` compiles it"


@contextmanager
def started(names: Sequence[str], setting: ContestSetting, model: Model) -> Iterator[dict[str, Target]]:
    """Yield where each server answers, until the block ends. model: setting.spec's. Raises ContenderFailed."""
    with ExitStack() as stack:
        start = {
            "engine": lambda: start_engine(setting, stack),
            "llama-server": lambda: start_llama(setting, model, stack),
        }
        yield {name: start[name]() for name in names}


def start_engine(setting: ContestSetting, stack: ExitStack) -> Target:
    flags = {
        "max-num-seqs": setting.slots,
        "max-queue": setting.most_queued,
        "block-size": BLOCK_SIZE,
        "num-kvcache-blocks": setting.slots * -(-setting.most_tokens // BLOCK_SIZE),
        "device": "cpu",
    } | ({"quantization": "int8"} if setting.precision == "int8" else {"dtype": setting.precision})
    typed = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    server = stack.enter_context(ServerProcess("the engine's server", engine_command(setting.spec, *typed)))
    return Target(server.url, setting.spec, keep_alive=False)


def start_llama(setting: ContestSetting, model: Model, stack: ExitStack) -> Target:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    path = folder / "model.gguf"
    try:
        write_model(model, folder)
    except ValueError as error:
        raise ContenderFailed(f"llama-server: {error}") from error
    environment = without_settings_of_ours(OURS)
    writer = [str(PYTHON), str(HERE / "gguf_file.py"), str(folder), str(path), setting.precision]
    written = subprocess.run(writer, env=environment, capture_output=True, text=True)
    if written.returncode:
        raise ContenderFailed(f"llama-server: its model could not be written: {written.stderr.strip()[-200:]}")
    command = llama_command(setting, path, torch.get_num_threads())
    server = stack.enter_context(ServerProcess("llama-server", command, environment))
    # llama.cpp's server closes connections that a client is about to use again, so no server is sent a second request.
    return Target(server.url, setting.spec, dialect=LLAMA, keep_alive=False)


def llama_command(setting: ContestSetting, path: Path, threads: int) -> Callable[[int], Sequence[str]]:
    """Make the command of llama.cpp's server for a ServerProcess: each slot has room for the longest request."""
    cache = KV_CACHE[setting.precision]
    flags = {
        "model": path,
        "host": "127.0.0.1",
        "parallel": setting.slots,
        "ctx-size": setting.slots * -(-setting.most_tokens // 256) * 256,
        "threads": threads,
        "threads-batch": threads,
        "cache-type-k": cache,
        "cache-type-v": cache,
    }
    typed = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    return lambda port: [str(LLAMA_SERVER), *typed, "--port", str(port)]
