"""Entries in their own processes: honest ones, and those that cheat, break or take too much, which are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from small_contest import IMPORTS, KINDS, LIMITS, SMALL
from tiers import in_every_run

from course.contest import Contest, Limits, Refused
from course.contest import contest as contest_module
from course.contest.contender import Contender
from course.contest.handed_over import checked_shape
from course.contest.workload import Request
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow

HONEST = """
    from course.contest import Policy

    class Mine(Policy):
        name = "mine"

        def key(self, seq):
            return 0
"""
# What a file may do to its own process: it changes what is sent back.
TAMPERS = """
    import os, signal, sys, time, threading
    import course.contest.worker as worker
    honest, runs, first = worker.say, [], {{}}

    def say(outbox, message):
        tokens = dict(message.get("ended", ()))
        runs.extend([1] if message.get("begun") and not tokens else [])
        {change}
        honest(outbox, message)

    worker.say = say
    worker.changed_since = lambda before: None  # what looks for changes is in its process, too
"""


def tampers(change: str) -> str:
    return dedent(TAMPERS.format(change=change)) + dedent(HONEST)


REFUSED = {
    "returns early": (tampers("1 in tokens and tokens[1].pop()"), "request 1: it gives "),
    "an id outside the vocabulary": (tampers("if 0 in tokens: tokens[0][0] = 2048"), "request 0: token 0 is wrong"),
    "tokens of the first run again": (
        tampers("for n in tokens: tokens[n][:] = first.setdefault(n, list(tokens[n]))"),
        "",
    ),
    "patches the judge": (
        tampers("if 0 in tokens: tokens[0][0] ^= 1")
        + "import course.contest.contest as c, course.contest.judge as j\n"
        + "c.mistake_in = j.mistake_in = j.first_wrong = lambda *arguments: None\n",
        "request 0: token 0 is wrong",
    ),
    "leaves": (tampers("runs and os._exit(7)"), "its process ended in its first run, exit status 7"),
    "is killed": (tampers("runs and os.kill(os.getpid(), 11)"), "its process ended in its first run, signal SIGSEGV"),
    "a child holds the pipe": (
        tampers("runs and os.fork() and os._exit(3)\n        runs and time.sleep(60)"),
        "its process ended in its first run, exit status 3",
    ),
    "thousands of brackets": (
        tampers("runs and print('[' * 200_000, file=outbox)"),
        "where its tokens are read: an entry only returns them",
    ),
    "an endless answer": (tampers("message['more'] = 'x' * (1 << 21)"), "its answer is longer than 1,048,576 bytes"),
    "exits in a run": (
        """
        import sys
        from course.contest import Policy

        class Mine(Policy):
            name = "mine"

            def key(self, seq):
                sys.exit("enough")
        """,
        "it failed in its first run: SystemExit: enough, in line 9 of my_entry.py",
    ),
    "too much memory": (
        """
        import torch
        from course.contest import Settings

        class Mine(Settings):
            def prepare(self, model):
                self.kept = torch.ones(2 << 30, dtype=torch.int8)
                return model
        """,
        "takes more memory than is allowed, in line 7 of my_entry.py",
    ),
    "weights that are not the model's": (
        """
        from course.contest import Settings

        class Mine(Settings):
            def prepare(self, model):
                model.token_embedding.weight.data.mul_(-1)
                return model
        """,
        "is wrong",
    ),
    "other settings than a policy's": (
        """
        from course.contest import Policy, entry
        from roseinfer.engine.config import EngineConfig

        entry.BASELINE = {**entry.BASELINE, "enforce_eager": False}

        class Mine(Policy):
            name = "mine"

            def key(self, seq):
                return 0
        """,
        "it changed course.contest.entry.BASELINE: an entry leaves the library as it is",
    ),
    "one token of each request": (
        """
        from course.contest import Policy

        class Mine(Policy):
            name = "mine"

            def key(self, seq):
                object.__setattr__(seq.params, "most_tokens", 1)
                return 0
        """,
        "request 0: it gives 1 tokens, ",
    ),
    "more than its turn": (
        tampers("message.get('begun') and message['begun'].append(message['begun'][0])"),
        "out of turn: each begins once, and ends once",
    ),
    "answers without an end": (
        tampers("while len(runs) > 1: honest(outbox, {'ended': [], 'begun': []})"),
        "it took longer than 4 s in a run, and was ended",
    ),
    "closes its pipe": (
        tampers("runs and os.close(outbox.fileno())\n        runs and time.sleep(60)"),
        "it closed the pipe through which its tokens are read in its first run",
    ),
}  # fmt: skip


# What the judge sees, what its process sees, and what the entry's process sees.
DAILY = ("patches the judge", "leaves", "too much memory")


@pytest.mark.parametrize(("source", "line"), in_every_run(REFUSED, DAILY))
def test_it_is_refused(source, line, contest, entry_of):
    with pytest.raises(Refused) as refused:
        contest.score(entry_of(source))
    said = str(refused.value)
    assert line in said and "\n" not in said, said


def test_one_that_hangs_is_ended(entry_of):
    file = entry_of(tampers("time.sleep(60 * (len(runs) > 1))"))
    with Contender(file, Limits(run_seconds=0.5)) as own:
        own.wait_until_ready()
        own.run(SMALL.draw(1), is_first=True)
        with pytest.raises(Refused, match=r"it took longer than 0\.5 s in a run, and was ended"):
            own.run(SMALL.draw(2))


# A policy is scored by test_no_answer_exists_while_it_runs, too.
@pytest.mark.parametrize("kind", in_every_run({kind: (kind,) for kind in KINDS}, ("Stage",)))
def test_each_kind_is_scored(kind, contest, entry_of):
    score = contest.score(entry_of(IMPORTS + KINDS[kind]), name=f"my {kind}")
    assert (score.row["name"], score.row["kind"]) == (f"my {kind}", kind)
    assert [(one["name"], one["repeat"]) for one in score.samples] == [("baseline", 0), ("entry", 0)]
    assert score.arguments["sha256"] == entry_of(IMPORTS + KINDS[kind]).sha256
    assert {"host", "device", "versions", "commit"} <= score.to_dict().keys()
    assert json.loads(score.to_line())["rows"][0]["name"] == f"my {kind}"


@pytest.mark.nightly  # test_a_file_has_one_entry says so without a process
def test_a_file_with_two_entries_is_an_argument_that_is_wrong(entry_of):
    source = IMPORTS + "class A(Policy):\n    pass\nclass B(Draft):\n    pass\n"
    with (
        pytest.raises(ValueError, match="my_entry.py: has 2 entries, A, B"),
        Contender(entry_of(source), LIMITS) as own,
    ):
        own.wait_until_ready()


SHAPES = {
    "no list": ([[1] * 6, "123456", [1] * 4], "request 1: its tokens are not a list of ids"),
    "True": ([[1] * 6, [1] * 6, [1, 1, 1, True]], "request 2: its tokens are not a list of ids"),
    "too few": ([[1] * 6, [1] * 5, [1] * 4], "request 1: it gives 5 tokens, 6 were asked for"),
    "too many": ([[1] * 6, [1] * 6, [1] * 5], "request 2: it gives 5 tokens, 4 were asked for"),
}


@pytest.mark.parametrize(("tokens", "line"), SHAPES.values(), ids=list(SHAPES))
def test_tokens_of_another_shape_are_refused(tokens, line):
    requests = [Request([5], num_tokens, "plain") for num_tokens in (6, 6, 4)]
    with pytest.raises(Refused, match=line):
        checked_shape(tokens, requests)
    right = [[1] * 6, [1] * 6, [1] * 4]
    assert checked_shape(right, requests) is right


@pytest.mark.nightly
def test_a_clock_that_stands_still_gains_nothing(contest, entry_of):
    slow = "time.perf_counter = time.time = time.monotonic = lambda: 0.0; time.sleep(0.25)"
    score = contest.score(entry_of(tampers(slow)))
    assert all(one["seconds"] >= 0.25 for one in score.samples if one["name"] == "entry")


@pytest.mark.nightly
def test_its_input_is_empty_and_what_it_prints_is_read_by_nothing(contest, entry_of):
    prints = (
        "assert sys.stdin.read() == ''; print('{\"tokens\": []}\\n' * 10000, flush=True); print('x', file=sys.stderr)"
    )
    assert contest.score(entry_of(tampers(prints))).row["name"] == "Mine"


THREAD = """
    import os, threading, time
    import course.contest.worker as worker

    def work(path):
        n = 0
        while True:
            n += 1
            with open(path, "w") as file:
                file.write(str(n))
            time.sleep(0.002)

    paths = [__file__ + ".beat1", __file__ + ".beat2"]
    threading.Thread(target=work, args=paths[:1], daemon=True).start()
    if os.fork() == 0:
        work(paths[1])

    def beats():
        return [open(path).read() if os.path.exists(path) else "" for path in paths]

    def has_moved(before):
        return all(now not in ("", then) for now, then in zip(beats(), before))

    while not has_moved(["", ""]):
        time.sleep(0.01)
    honest = worker.run_once

    def run_once(*arguments):
        before = beats()
        answer = honest(*arguments)
        while not has_moved(before):  # a run ends when both have worked in it
            time.sleep(0.01)
        return answer

    worker.run_once = run_once
"""


@pytest.mark.nightly
def test_threads_and_children_stand_still_between_runs(entry_of, contest):
    file = entry_of(dedent(THREAD) + dedent(HONEST))

    def beats() -> list[str]:
        return [Path(f"{file.path}.beat{n}").read_text() for n in (1, 2)]

    def stand_still() -> bool:
        time.sleep(0.3)  # a signal reaches a process that runs on the other core a moment later
        before = beats()
        time.sleep(0.3)
        return beats() == before

    with Contender(file, Limits(run_seconds=60)) as own:
        own.wait_until_ready()
        assert stand_still()
        own.run(contest.workload.draw(0))
        assert stand_still()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


LEFT_ALONE = """
    import sys, time
    from course.contest.contender import Contender, Limits
    from course.contest import read_entry
    own = Contender(read_entry(sys.argv[1]), Limits())
    own.wait_until_ready()
    print(own._process.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a stopped process with its parent")
def test_a_contest_that_is_killed_leaves_no_stopped_process(entry_of):
    command = [sys.executable, "-c", dedent(LEFT_ALONE), entry_of(HONEST).path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as contest:
        pid = int(contest.stdout.readline())
        assert runs(pid)
        contest.kill()
    deadline = time.monotonic() + 20
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(pid)


def test_no_answer_exists_while_it_runs(contest, entry_of, monkeypatch):
    """It is told lengths, and prompts in their turn; tokens are judged when its process has ended; no prompt comes
    twice."""
    told, own = [], []
    asked, init, judge = Contender._asked, Contender.__init__, contest_module.mistake_in

    def spy_asked(self, message, *rest):
        told.append(message)
        return asked(self, message, *rest)

    def spy_init(self, *arguments):
        own.append(self)
        init(self, *arguments)

    def spy_judge(*arguments):
        assert [one._process.returncode is not None for one in own] == [True], "its process has ended"
        return judge(*arguments)

    monkeypatch.setattr(Contender, "_asked", spy_asked)
    monkeypatch.setattr(Contender, "__init__", spy_init)
    monkeypatch.setattr(contest_module, "mistake_in", spy_judge)
    contest.score(entry_of(HONEST))
    runs = [message for message in told if "file" not in message]
    assert [next(iter(message)) for message in runs] == ["lengths", "prompts"] * 4 + ["lengths"]
    assert runs[-1] == {"lengths": []}, "asks what it changed"
    texts = [tuple(prompt) for message in runs for prompt in message.get("prompts", ())]
    assert len(texts) == 12 and len(set(texts)) == 6  # each twice: for the baseline, and for the entry


def test_a_contest_that_cannot_be_made_leaves_no_process(monkeypatch):
    """Ctrl-C in a notebook leaves the kernel running, and with it all that it started."""

    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(contest_module, "load_model", interrupted)
    monkeypatch.setattr(contest_module, "Contender", lambda *arguments: pytest.fail("a process is started"))
    with pytest.raises(KeyboardInterrupt):
        Contest(SMALL, limits=LIMITS)


@pytest.mark.nightly
def test_a_baseline_that_stops_is_no_fault_of_the_entry(entry_of):
    with Contest(SMALL, repeats=1, limits=LIMITS) as contest:
        os.kill(contest.baseline._process.pid, signal.SIGKILL)
        with pytest.raises(ContenderFailed, match="the baseline failed, so no entry has a score: its process ended"):
            contest.score(entry_of(HONEST))
