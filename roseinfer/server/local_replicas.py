"""serve_replicas: Ray Serve on this machine alone, for one application and as long as this process runs."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from roseinfer.arguments import counted
from roseinfer.engine.calls import handled_by

from . import proxy_errors
from .greeting import greeting
from .run import Serving, listen, url_of
from .settings import ServerSettings

OBJECT_STORE_BYTES = 100 * 2**20  # the least that Ray takes is 75 MiB; requests and answers do not pass through it
POLL_SECONDS = 0.5
START_ATTEMPTS = 3
LOGGED = logging.CRITICAL  # of Ray's own lines, on the terminal: its errors are raised here, or end in the folder
HEADER_VARIABLE = "RAY_SERVE_SESSION_ID_HEADER_KEY"
# Read by Ray when it is imported, and by the processes that it starts.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",  # to files in the temporary folder alone
    proxy_errors.VARIABLE: proxy_errors.PATH,
}


class ReplicasFailed(RuntimeError):
    """Raised when Ray did not start, or no replica did."""


Say = Callable[[str], object]


def serve_replicas(
    serving: Serving,
    settings: ServerSettings,
    num_replicas: int,
    max_num_seqs: int,
    header: str | None,
    say: Say,
) -> None:
    """Serve on so many replicas until SIGTERM or Ctrl-C, then let requests end within settings.drain_seconds.

    Each replica has its share of the CPU cores, and of the threads. header: requests with the same value of it go to
    the same replica; None: to the less busy one of two. say: gets lines for a terminal.

    Raises OSError for an address that cannot be listened at, and ReplicasFailed.
    """
    with listen(settings.host, settings.port) as free:  # asked before Ray, which takes long to start, listens there
        url, (host, port) = url_of(free), free.getsockname()[:2]
    os.environ.update(
        ENVIRONMENT | {"RAY_AUTH_TOKEN": secrets.token_hex(32)} | ({HEADER_VARIABLE: header} if header else {})
    )
    say(f"{url} serves {serving.model_name} on {num_replicas} replicas, once they are loaded")
    begun = time.monotonic()
    with local_ray(), ending_signals():
        from ray import serve

        from .replicas import NAME, deployed

        logging.getLogger("ray.serve").setLevel(LOGGED)  # which importing it has set
        cores = os.cpu_count() or 1
        resources = {"num_cpus": cores / num_replicas}
        app = deployed(serving, settings, (num_replicas, num_replicas), max_num_seqs, resources, bool(header))
        try:
            serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
            try:
                serve.run(app, name=NAME, route_prefix="/")
            except RuntimeError as error:
                raise ReplicasFailed(f"the replicas did not start: {last_line(str(error))}") from error
            say(f"ready after {time.monotonic() - begun:.1f} s")
            say(greeting(url, settings))
            watch(num_replicas, say)
        except KeyboardInterrupt:
            say(f"draining: what runs has {settings.drain_seconds:g} s to end")
            serve.delete(NAME)
            serve.shutdown()
            say("every replica has ended")


def last_line(text: str) -> str:
    """Return the last line of a traceback that Ray passes on."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else text


@contextmanager
def local_ray() -> Iterator[None]:
    """Run a Ray of this process alone: with its own token, no dashboard, and logs in a folder that is removed with it.

    Until it has ended, stdout is thrown away: Ray prints there of each process that has died, and has no setting for
    it. `watch` says what a user needs of that. Raises ReplicasFailed.
    """
    import ray

    logging.getLogger("ray").setLevel(LOGGED)
    folder = tempfile.mkdtemp(prefix="roseinfer-ray-")
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            start_ray(folder)
            yield
        finally:
            with suppress(Exception):
                ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def start_ray(folder: str) -> None:
    """Start Ray, in up to START_ATTEMPTS attempts. Raises ReplicasFailed.

    Ray gives its own processes 15 seconds to start, and on a busy machine they may take longer.
    """
    import ray

    for attempt in range(START_ATTEMPTS):
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=LOGGED,
                _temp_dir=folder,
            )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == START_ATTEMPTS - 1:
                raise ReplicasFailed(f"Ray did not start ({error}): is the machine busy?") from error


@contextmanager
def ending_signals() -> Iterator[None]:
    """Make SIGTERM and Ctrl-C raise KeyboardInterrupt: once to drain, and a second time to end at once."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)  # Ray has put a handler of its own there
    try:
        with handled_by(interrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def watch(num_replicas: int, say: Say) -> None:
    """Tell when replicas are lost and when all are there again, until a signal raises KeyboardInterrupt."""
    lost_at: float | None = None
    while True:
        time.sleep(POLL_SECONDS)
        running = num_running()
        if running < num_replicas and lost_at is None:
            lost_at = time.monotonic()
            say(f"{running} of {counted(num_replicas, 'replica')} run, and Ray starts the others again")
        elif running == num_replicas and lost_at is not None:
            say(f"{running} of {counted(num_replicas, 'replica')} run again, after {time.monotonic() - lost_at:.1f} s")
            lost_at = None


def num_running() -> int:
    """Count the replicas that take requests."""
    from ray import serve

    from .replicas import NAME

    states = serve.status().applications[NAME].deployments[NAME].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")
