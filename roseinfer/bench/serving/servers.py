"""The servers of a contest: this engine's, and llama.cpp's, on the same weights, each in its own process."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from roseinfer.models import Model

from ..child_process import without_settings_of_ours
from ..contenders import ContenderFailed
from ..peers import write_model
from ..peers.process import ENVIRONMENT, HERE, OURS, PYTHON
from ..settings import SERVERS, Serve, blocks_of
from .client import Target
from .dialect import LLAMA
from .server_process import ServerProcess, engine_command

LLAMA_SERVER = ENVIRONMENT / "bin" / "llama-server"
KV_CACHE = {"float32": "f32", "int8": "f16"}  # of llama.cpp: what it has by default beside weights in 8 bits
BLOCK_SIZE = 16


def why_no_llama_server() -> str | None:
    """Say why llama.cpp's server cannot run; None once `make peers` has been run to its end."""
    return None if LLAMA_SERVER.is_file() else "llama-server is not there: `make peers` compiles it"


@contextmanager
def started(setting: Serve, spec: str, model: Model, most_queued: int) -> Iterator[dict[str, Target]]:
    """Yield where each of the setting's servers answers, until the block ends. Raises ContenderFailed.

    Args:
        setting: names them, and says how many requests they run at a time, in which precision.
        spec: of the model, as load_model takes it.
        model: that model.
        most_queued: requests that may wait.
    """
    with ExitStack() as stack:
        start = {
            "engine": partial(start_engine, setting, spec, most_queued, stack),
            "llama-server": partial(start_llama, setting, spec, model, stack),
        }
        yield {name: start[name]() for name in setting.contenders or SERVERS}


def most_tokens(setting: Serve) -> int:
    """Return the tokens of the longest request, prompt and output."""
    return setting.prompt_len[1] + setting.output_len[1]


def start_engine(setting: Serve, spec: str, most_queued: int, stack: ExitStack) -> Target:
    flags = {
        "max-num-seqs": setting.slots,
        "max-queue": most_queued,
        "block-size": BLOCK_SIZE,
        "num-kvcache-blocks": blocks_of(setting.slots, most_tokens(setting), BLOCK_SIZE),
        "device": "cpu",
    } | ({"quantization": "int8"} if setting.precision == "int8" else {"dtype": setting.precision})
    typed = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    server = stack.enter_context(ServerProcess("the engine's server", engine_command(spec, *typed)))
    return Target(server.url, spec, keep_alive=False)


def start_llama(setting: Serve, spec: str, model: Model, stack: ExitStack) -> Target:
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
    return Target(server.url, spec, dialect=LLAMA, keep_alive=False)


def llama_command(setting: Serve, path: Path, threads: int) -> Callable[[int], Sequence[str]]:
    """Make the command of llama.cpp's server for a ServerProcess: each slot has room for the longest request."""
    cache = KV_CACHE[setting.precision]
    flags = {
        "model": path,
        "host": "127.0.0.1",
        "parallel": setting.slots,
        "ctx-size": setting.slots * -(-most_tokens(setting) // 256) * 256,
        "threads": threads,
        "threads-batch": threads,
        "cache-type-k": cache,
        "cache-type-v": cache,
    }
    typed = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    return lambda port: [str(LLAMA_SERVER), *typed, "--port", str(port)]
