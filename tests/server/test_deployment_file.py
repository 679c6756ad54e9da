"""`serve run` with the deployment file of docs/scaling.md, on a Ray that it starts; a config file sets the port."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import pytest
from replica_processes import WAIT, Cluster

from roseinfer.llm.llm import LLM
from roseinfer.paths import ROOT
from roseinfer.sequence import SamplingParams
from roseinfer.server.local_replicas import ENVIRONMENT

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.nightly]

DOCS = ROOT / "docs" / "scaling.md"
HERE = {'"Qwen/Qwen2.5-7B-Instruct"': '"tiny"', "num_gpus=1": "num_gpus=0"}  # in place of the model and its GPU
CONFIG = """\
applications:
  - import_path: deploy:app
http_options:
  host: 127.0.0.1
  port: {port}
"""


def test_serve_run_takes_the_file_of_the_docs():
    [text] = re.findall(r"```python\n(from roseinfer\.server\.replicas .*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    for theirs, ours in HERE.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}  # of another Ray
    # A socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder, "deploy.py").write_text(text, encoding="utf-8")
        Path(folder, "serve.yaml").write_text(CONFIG.format(port=port), encoding="utf-8")
        process = subprocess.Popen(
            [Path(sys.executable).with_name("serve"), "run", "serve.yaml"],
            cwd=folder,
            env=env | ENVIRONMENT | {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        served = Cluster(process, Path(folder), f"http://127.0.0.1:{port}")
        try:
            served.wait_for(lambda: is_ready(served))
            _, answer = served.ask("/v1/completions", {"prompt": "Return a new", "max_tokens": 12, "temperature": 0})
            llm = LLM("tiny", dtype="bfloat16")
            [output] = llm.generate(["Return a new"], SamplingParams(max_tokens=12), use_tqdm=False)
            assert answer["choices"][0]["text"] == output.outputs[0].text
            process.send_signal(signal.SIGINT)
            process.wait(WAIT)
            served.wait_for(lambda: not served.processes())
        finally:
            served.kill()


def is_ready(served: Cluster) -> bool:
    assert served.process.poll() is None, served.said
    with suppress(URLError, ConnectionError):
        return served.ask("/health")[1] == {"status": "ready"}
    return False
