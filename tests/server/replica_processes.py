"""`roseinfer serve --replicas` as a process: what it says and answers, and the processes that Ray starts for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import openai

from roseinfer.paths import ROOT

WAIT = 240  # seconds for anything that is waited for: Ray starts eight processes, and tests share two cores
HEADER = "x-prefix-id"
PRINTED = "printed"  # the file with what the command wrote to stdout
LONG = {"prompt": "Return a new", "max_tokens": 450, "ignore_eos": True, "stream": True}


class Cluster:
    """A server on Ray. folder: where its temporary files are. url: None for the one that it says."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, url: str | None = None) -> None:
        self.process, self.folder, self._url = process, folder, url
        self._lines: list[str] = []
        assert process.stderr
        self._reader = threading.Thread(target=lambda: self._lines.extend(process.stderr), daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        return "".join(self._lines)

    @property
    def printed(self) -> str:
        return (self.folder / PRINTED).read_text(encoding="utf-8")

    @property
    def url(self) -> str:
        return self._url or re.search(r"http://\S+", self.said)[0]

    def wait_for(self, is_so: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT
        while not is_so():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def wait_to_say(self, text: str) -> None:
        self.wait_for(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said, self.said

    def open(self, path: str, body: Any = None, affinity: str | None = None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"} | ({HEADER: affinity} if affinity else {})
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=WAIT)

    def ask(self, path: str, body: Any = None, affinity: str | None = None) -> tuple[str, Any]:
        """(the replica that answered, its answer)."""
        with self.open(path, body, affinity) as answer:
            return answer.headers["x-replica"], json.load(answer)

    def affinities(self) -> dict[str, str]:
        """{replica: a value of the header that leads to it}, of both replicas."""
        found: dict[str, str] = {}
        for i in range(WAIT):
            replica, _ = self.ask("/health", affinity=f"group {i}")
            found.setdefault(replica, f"group {i}")
            if len(found) == 2:
                return found
        raise AssertionError(f"one replica has all: {found}")

    def processes(self) -> dict[int, str]:
        """{pid: command} of the processes that the server has started: they have its temporary folder in common."""
        found = {}
        for one in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is not ours
                if str(self.folder).encode() in (one / "environ").read_bytes():
                    found[int(one.name)] = (one / "cmdline").read_text().replace("\0", " ")
        found.pop(self.process.pid, None)
        return found

    def kill(self) -> None:
        """End the server, and what Ray has started for it."""
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def replica_pids(self) -> list[int]:
        return [pid for pid, args in self.processes().items() if args.startswith("ray::ServeReplica")]


class Request(threading.Thread):
    """A long streamed answer, read on a thread. complete: it ended as it should; None while it runs."""

    def __init__(self, cluster: Cluster, affinity: str) -> None:
        super().__init__(daemon=True)
        self.cluster, self.affinity = cluster, affinity
        self.has_begun = threading.Event()
        self.replica: str | None = None
        self.complete: bool | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.cluster.open("/v1/completions", LONG, self.affinity) as answer:
                self.replica = answer.headers["x-replica"]
                answer.readline()
                self.has_begun.set()
                self.complete = answer.read().decode().endswith("data: [DONE]\n\n")
        except (OSError, HTTPException):
            self.complete = False


def error_of_whole(cluster: Cluster, affinity: str) -> openai.APIStatusError | None:
    """The error of a long answer that is not streamed, read by the official client."""
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="unused", timeout=WAIT, max_retries=0)
    body = {"prompt": LONG["prompt"], "max_tokens": LONG["max_tokens"], "extra_body": {"ignore_eos": True}}
    try:
        client.completions.create(model="tiny", **body, extra_headers={HEADER: affinity})
    except openai.APIStatusError as error:
        return error
    return None


@contextmanager
def replicas(*arguments: str) -> Iterator[Cluster]:
    """Two replicas of the bundled model on a free port."""
    command = [sys.executable, "-m", "roseinfer", "serve", "tiny", "--replicas", "2", "--port", "0"]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # a socket's path has 107 bytes at most
        process = subprocess.Popen(
            [*command, "--affinity-header", HEADER, *arguments],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": folder},
            stdout=Path(folder, PRINTED).open("w"),
            stderr=subprocess.PIPE,
            text=True,
        )
        cluster = Cluster(process, Path(folder))
        try:
            cluster.wait_to_say("ready after")
            yield cluster
        finally:
            cluster.kill()
