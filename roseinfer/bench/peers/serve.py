"""The peers' end of the wire: JSON lines on stdin and stdout. Runs in the peers' own environment, without torch.

    {"load": {"source": ..., "precision": ..., "threads": N}} -> {"versions": {name: version}}
    {"run": {"prompts": [[id, ...], ...], "max_tokens": N}}   -> {"token_ids": [[id, ...], ...], "began": s, "ended": s}
    whatever raises                                           -> {"error": line}

began and ended are readings of the monotonic clock that all processes of a machine share. Threads that spin after their
work have ended it when the answer comes. The end of stdin ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, Protocol

import numpy as np
from safetensors.numpy import load_file

LOOK_S, BUSY_SHARE, MOST_S = 0.02, 0.1, 2.0
Tokens = list[list[int]]


class Peer(Protocol):
    versions: dict[str, str]

    def prepare(self, prompts: Tokens, max_tokens: int) -> None:
        """Allocate what such a batch needs, and empty the cache, before the clock starts."""

    def generate(self, prompts: Tokens, max_tokens: int) -> Tokens:
        """Generate exactly max_tokens new ids for each prompt, greedily, with end tokens ignored."""


def serve(load: Callable[[Path, str, int], Peer]) -> None:
    """Answer until stdin ends. load(source, precision, threads): a folder that `read_model` reads, or a GGUF file."""
    wire = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a C library prints is no answer
    peer: Peer | None = None
    answer: dict[str, Any]
    for line in sys.stdin:
        try:
            [(request, given)] = json.loads(line).items()
            if request == "load":
                peer = load(Path(given["source"]), given["precision"], given["threads"])
                answer = {"versions": peer.versions}
            else:
                assert peer is not None, "load comes first"
                answer = timed(peer, given["prompts"], given["max_tokens"])
        except ValueError as error:  # a precision that it has not, say
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        wait_until_idle()
        wire.write(json.dumps(answer) + "\n")
        wire.flush()


def timed(peer: Peer, prompts: Tokens, max_tokens: int) -> dict:
    peer.prepare(prompts, max_tokens)
    began = perf_counter()
    token_ids = peer.generate(prompts, max_tokens)
    return {"began": began, "ended": perf_counter(), "token_ids": token_ids}


def wait_until_idle() -> None:
    """Wait until this process takes no processor time.

    Threads of a pool spin for a while after their last work; they must not disturb the next measurement.
    """
    for _ in range(int(MOST_S / LOOK_S)):
        used = process_time()
        sleep(LOOK_S)
        if process_time() - used < BUSY_SHARE * LOOK_S:
            return


def read_model(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Read what roseinfer.bench.peers.weights wrote: the shape, and the weights under roseinfer's own names."""
    shape = json.loads((folder / "shape.json").read_text())
    return shape, load_file(folder / "weights.safetensors")
