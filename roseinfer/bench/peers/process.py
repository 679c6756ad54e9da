"""PeerProcess: another engine in its own process, asked one thing at a time. The wire is described in serve.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from roseinfer.paths import ROOT

from ..child_process import ChildProcess, without_settings_of_ours
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


class PeerProcess(ChildProcess):
    """Another engine in a process of its own. script: one that serve.py serves.

    python: starts the script; it need not be this process's Python. source: a folder that write_model wrote, or a GGUF
    file. Raises ContenderFailed, with the peer's own reason, when it cannot load the model so, and in run when it
    answers with an error or not at all. Close it, or use it as a context manager.
    """

    def __init__(
        self, name: str, script: Path, source: Path, precision: str, threads: int, python: Path = PYTHON
    ) -> None:
        self._load = {"source": str(source), "precision": precision, "threads": threads}
        super().__init__(name, [str(python), str(script)], without_settings_of_ours(OURS), is_asked=True)

    def wait_until_ready(self) -> None:
        self.versions: dict[str, str] = self._ask("load", **self._load)["versions"]

    def run(self, prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], float, float]:
        """Return the new token ids of each prompt, and when the run began and ended (see serve.py)."""
        answer = self._ask("run", prompts=prompts, max_tokens=max_tokens)
        return answer["token_ids"], answer["began"], answer["ended"]

    def _ask(self, request: str, **given: Any) -> dict[str, Any]:
        questions, answers = self.process.stdin, self.process.stdout
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
            return f"it ended with status {self.process.wait(SECONDS_TO_END)}{self.last_line()}"
        except subprocess.TimeoutExpired:
            return "it gave no answer"
