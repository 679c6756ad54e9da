"""PeerProcess: another engine in its own process, asked one thing at a time. The wire is described in serve.py."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from roseinfer.paths import ROOT

from ..contenders import ContenderFailed

ENVIRONMENT = ROOT / "build" / "peers"
PYTHON, STAMP = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".peers-stamp"
HERE = Path(__file__).parent
PEERS = {"CTranslate2": HERE / "ctranslate2_peer.py", "llama.cpp": HERE / "llama_cpp_peer.py"}
SECONDS_TO_END = 10
# Settings of our process, of its OpenMP too, are not for others: told how many threads, they go by their defaults.
OURS = ("PYTHONPATH", "PYTHONHOME", "OMP_", "GOMP_", "KMP_")


def why_no_peers() -> str | None:
    """Say why no peer can run here; None once `make peers` has been run to its end."""
    return None if STAMP.is_file() else "`make peers` compiles it"


class PeerProcess:
    """Another engine in a process of its own. script: one that serve.py serves.

    python: starts the script; it need not be this process's Python. folder: one that write_model wrote. Raises
    ContenderFailed, with the peer's own reason, when it cannot load the model so, and in run when it answers with an
    error or not at all. Close it, or use it as a context manager.
    """

    def __init__(
        self, name: str, script: Path, folder: Path, precision: str, threads: int, python: Path = PYTHON
    ) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith(OURS)},
        )
        try:
            loaded = self._ask("load", folder=str(folder), precision=precision, threads=threads)
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = loaded["versions"]

    def run(self, prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], float, float]:
        """Return the new token ids of each prompt, and when the run began and ended (see serve.py)."""
        answer = self._ask("run", prompts=prompts, max_tokens=max_tokens)
        return answer["token_ids"], answer["began"], answer["ended"]

    def close(self) -> None:
        """End the process; a second call does nothing."""
        try:
            self._process.communicate(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        except ValueError:  # closed before
            pass
        self._said.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, request: str, **given: Any) -> dict[str, Any]:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions and answers, "both are pipes"
        try:
            questions.write(json.dumps({request: given}) + "\n")
            questions.flush()
            answer = json.loads(answers.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            raise ContenderFailed(f"{self.name} failed in {request}: {self._last_words()}") from error
        if "error" in answer:
            raise ContenderFailed(f"{self.name} failed in {request}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        """Tell how a process that gave no answer ended, with the last line that it printed."""
        try:
            status = self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "it gave no answer"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"it ended with status {status}" + (f", last saying: {lines[-1]}" if lines else "")
