"""A small storm over a server, and a signal in the middle of one: see storm.py."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress

import pytest
from running import DEADLINE, running_server
from served_process import serving
from storm import TEXTS, Storm
from test_signals import children

# A load with clients that leave and bodies that are wrong is in tests/bench/test_serving_bench.py, each kind of end in
# test_waits.py and test_signals.py.
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.nightly]

ENDS_WITHIN = DEADLINE  # seconds: 1 to drain, 5 to send, 5 for the last step, and the rest for a busy machine


@pytest.fixture(scope="module")
def expected(offline) -> dict[str, str]:
    return {text: offline.text(text, max_tokens=Storm.MOST_TOKENS) for text in TEXTS}


def test_clients_that_do_anything_get_no_wrong_answer_and_lose_no_block(folder, expected):
    """Processes of the server are stopped and go on all the while."""
    with running_server(folder, max_queue=16) as running:
        running.server.service.prompts._grammar_worker.seconds = 0.5
        storm, calm = Storm(running.address, expected, seed=1), threading.Event()
        trouble = threading.Thread(target=stop_and_go, args=(os.getpid(), calm, 1))
        trouble.start()
        try:
            storm.run(num_clients=60)
        finally:
            calm.set()
            trouble.join()
        assert not storm.wrong, storm.wrong[:5]
        running.wait_until_idle()
        assert running.ask("/health") == (200, {"status": "ready"})


def stop_and_go(pid: int, calm: threading.Event, seed: int) -> None:
    """Stop processes that `pid` has started for moments."""
    draw = random.Random(seed)
    while not calm.wait(draw.random() * 0.2):
        for child in children(pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
        calm.wait(draw.random() * 0.5)
        for child in children(pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)


@pytest.mark.parametrize("seed", [1, 2])
def test_it_ends_in_the_middle_of_a_storm(folder, expected, seed):
    """A signal or two at any moment, while its processes may be stopped."""
    draw = random.Random(seed)
    with serving(folder, "--drain-seconds", "1", "--max-queue", "16", "--max-num-seqs", "4") as served:
        process, storm = served.process, Storm(served.address, expected, seed)
        clients = threading.Thread(target=storm.run, args=(60,))
        clients.start()
        time.sleep(draw.random() * 3)
        left = children(process.pid)
        if draw.random() < 0.5:
            for child in left:
                os.kill(child, signal.SIGSTOP)
        storm.is_ending = True
        with suppress(subprocess.TimeoutExpired):
            for number in draw.choice([(15,), (2,), (15, 15), (2, 2), (15, 2)]):
                process.send_signal(number)
                process.wait(draw.random() * 1.5)
        said = process.communicate(timeout=ENDS_WITHIN)[1]
        clients.join(DEADLINE)
        assert not clients.is_alive() and process.returncode == 0, said
        assert "cut off" in said or "every request has ended" in said
        assert not storm.wrong, storm.wrong[:5]
        assert not [child for child in left if is_there(child)], "a process was left behind"


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
