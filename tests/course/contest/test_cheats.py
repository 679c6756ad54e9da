"""Entries that cheat, break or take too much: each is refused with one line that says why, or gains nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from small_contest import LIMITS, SMALL
from tiers import in_every_run

from course.contest import Contest, Limits, Refused
from course.contest import contest as contest_module
from course.contest.contender import Contender
from course.contest.handed_over import checked_shape
from course.contest.workload import Request
from roseinfer.bench.contenders import ContenderFailed

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
    "one wrong token": (tampers("if 2 in tokens: tokens[2][-1] ^= 1"), "is wrong"),
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
    "crashes": (tampers("len(runs) > 1 and 1 / 0") , "its process ended in a run, exit status 1"),
    "leaves": (tampers("runs and os._exit(7)"), "its process ended in its first run, exit status 7"),
    "is killed": (tampers("runs and os.kill(os.getpid(), 11)"), "its process ended in its first run, signal SIGSEGV"),
    "hangs": (tampers("time.sleep(60 * (len(runs) > 1))"), "it took longer than 4 s in a run, and was ended"),
    "a child holds the pipe": (
        tampers("runs and os.fork() and os._exit(3)\n        runs and time.sleep(60)"),
        "its process ended in its first run, exit status 3",
    ),
    "garbage where tokens are read": (
        tampers("runs and print('hello', file=outbox)"),
        "it writes b'hello' where its tokens are read: an entry only returns them",
    ),
    "thousands of brackets": (
        tampers("runs and print('[' * 200_000, file=outbox)"),
        "where its tokens are read: an entry only returns them",
    ),
    "an endless answer": (tampers("message['more'] = 'x' * (1 << 21)"), "its answer is longer than 1,048,576 bytes"),
    "raises in a run": (
        """
        from course.contest import Policy

        class Mine(Policy):
            name = "mine"

            def key(self, seq):
                raise KeyError("lost")
        """,
        "it failed in its first run: KeyError: 'lost', in line 8 of my_entry.py",
    ),
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
    "more room than others": (
        """
        from course.contest import Settings

        class Mine(Settings):
            settings = {"max_num_seqs": 64}
        """,
        "ValueError: max_num_seqs is the same for every entry: leave it out",
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
    "ends its guard": (
        tampers("len(runs) == 1 and os.kill(os.getppid(), 9)\n        runs.extend(runs[:1])"),
        "the process that guards it was ended in its first run",
    ),
    "stops its guard": (
        tampers("len(runs) == 1 and os.kill(os.getppid(), signal.SIGSTOP)"),
        "the process that guards it was stopped in its first run",
    ),
    "stops its guard and leaves": (
        tampers("len(runs) == 1 and (os.kill(os.getppid(), signal.SIGSTOP), os._exit(3))"),
        "the process that guards it was stopped in its first run",
    ),
    "an unknown setting": (
        """
        from course.contest import Settings

        class Mine(Settings):
            settings = {"speed": 9}
        """,
        "it failed while it was loaded: ValueError: ",
    ),
}  # fmt: skip


# One for each thing that the judge looks at.
DAILY = ("returns early", "patches the judge", "leaves", "hangs", "too much memory", "more room than others")


@pytest.mark.parametrize(("source", "line"), in_every_run(REFUSED, DAILY))
def test_it_is_refused(source, line, contest, entry_of):
    with pytest.raises(Refused) as refused:
        contest.score(entry_of(source))
    said = str(refused.value)
    assert line in said and "\n" not in said, said


SHAPES = {
    "None": (None, "it does not give tokens for each of the 3 requests"),
    "too few requests": ([[1] * 6, [1] * 6], "it does not give tokens for each of the 3 requests"),
    "no list": ([[1] * 6, "123456", [1] * 4], "request 1: its tokens are not a list of ids"),
    "a text": ([["1"] * 6, [1] * 6, [1] * 4], "request 0: its tokens are not a list of ids"),
    "True": ([[1] * 6, [1] * 6, [1, 1, 1, True]], "request 2: its tokens are not a list of ids"),
    "a float": ([[1.0] * 6, [1] * 6, [1] * 4], "request 0: its tokens are not a list of ids"),
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
def test_the_tokens_of_another_request_are_called_so(contest, entry_of):
    swap = """equal = [n for n in tokens if len(tokens[n]) == 6]
        if equal:
            message["ended"] = [[n, tokens[m]] for n, m in zip(equal, equal[::-1], strict=True)]"""
    with pytest.raises(Refused, match=r"request \d: token \d is wrong, and these are the tokens of request \d"):
        contest.score(entry_of(tampers(swap)))


@pytest.mark.nightly
def test_a_clock_that_stands_still_gains_nothing(contest, entry_of):
    slow = "time.perf_counter = time.time = time.monotonic = lambda: 0.0; time.sleep(0.25)"
    score = contest.score(entry_of(tampers(slow)))
    assert all(one["seconds"] >= 0.25 for one in score.samples if one["name"] == "entry")


@pytest.mark.nightly
def test_what_it_prints_is_read_by_nothing(contest, entry_of):
    score = contest.score(
        entry_of(tampers("print('{\"tokens\": []}\\n' * 10000, flush=True); print('x', file=sys.stderr)"))
    )
    assert score.row["name"] == "Mine"


@pytest.mark.nightly
def test_it_has_nothing_to_read(contest, entry_of):
    """Its input is empty."""
    score = contest.score(entry_of(tampers("assert sys.stdin.read() == ''")))
    assert len(score.samples) == 2


@pytest.mark.parametrize("before", [pytest.param(None, marks=pytest.mark.nightly), b'{"entries":[]}'])
def test_a_scoreboard_that_it_writes_is_restored(before, contest, entry_of, tmp_path):
    board = tmp_path / "board.json"
    if before is not None:
        board.write_bytes(before)
    with pytest.raises(Refused, match="it wrote to the scoreboard .*board.json, which is as before again"):
        contest.score(entry_of(tampers(f"open({str(board)!r}, 'w').write('mine')")), board=board)
    assert (board.read_bytes() if board.exists() else None) == before


@pytest.mark.nightly
def test_memory_of_its_children_counts(entry_of):
    """Each of three processes stays below the limit."""
    grows = """
        import os, time

        for _ in range(2):
            if os.fork() == 0:
                kept = b"x" * (300 << 20)
                time.sleep(60)
        time.sleep(60)
    """
    file = entry_of(dedent(grows) + dedent(HONEST))
    with Contender(file, Limits(memory_bytes=512 << 20)) as own, pytest.raises(Refused) as refused:
        own.wait_until_ready()
    assert str(refused.value) == "it takes more memory than is allowed: 512 MiB for all its processes together"


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


def test_all_of_it_ends_with_the_contest(entry_of):
    with Contender(entry_of(dedent(THREAD) + dedent(HONEST)), LIMITS) as own:
        own.wait_until_ready()
        group = own._pid
    for _ in range(100):  # an orphan that was killed is there until init has read its status
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


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
        assert [one._guard.returncode is not None for one in own] == [True], "its process has ended"
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


@pytest.mark.parametrize("name", ["load_model", "Contender"])
def test_a_contest_that_cannot_be_made_leaves_no_process(name, monkeypatch):
    """Ctrl-C in a notebook leaves the kernel running, and with it all that it started."""

    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    before = psutil.Process().children()
    patched = contest_module if name == "load_model" else Contender
    monkeypatch.setattr(patched, "load_model" if name == "load_model" else "_read_pid", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Contest(SMALL, limits=LIMITS)
    assert psutil.Process().children() == before


@pytest.mark.nightly
def test_a_baseline_that_stops_is_no_fault_of_the_entry(entry_of):
    with Contest(SMALL, repeats=1, limits=LIMITS) as contest:
        os.kill(contest.baseline._pid, signal.SIGKILL)
        with pytest.raises(ContenderFailed, match="the baseline failed, so no entry has a score: its process ended"):
            contest.score(entry_of(HONEST))
