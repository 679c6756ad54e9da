"""Contest: scores entries one after the other, each in turn with the baseline on requests that are new in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from roseinfer.arguments import require_count
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.interleave import turns
from roseinfer.bench.provenance import describe_host
from roseinfer.models import Model, load_model

from .board import require_free
from .contender import Contender, Limits
from .entry_file import EntryFile
from .judge import mistake_in
from .refused import Refused
from .score import BASELINE, Score, score_row
from .workload import SPEC, Request, Workload

Tried = list[tuple[str, list[Request], list[list[int]]]]  # who gave which tokens for which requests


class Contest:
    """Scores entries against the baseline. A context manager, which ends the baseline's process.

    repeats: scored runs of each, after one for warm-up. say: called with a line about what is done now. Raises
    ValueError for repeats below 1.
    """

    def __init__(
        self,
        workload: Workload,
        repeats: int = 5,
        limits: Limits | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        require_count("repeats", repeats, at_least=1)
        self.workload, self.repeats, self.say = workload, repeats, say
        self.limits = limits or Limits()
        self.model: Model = load_model(SPEC, device="cpu")
        self.baseline = Contender(None, self.limits)  # last: an error above leaves no process

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *error: object) -> None:
        self.baseline.close()

    def score(self, file: EntryFile, name: str | None = None, board: Path | None = None) -> Score:
        """Run an entry against the baseline and return its score.

        name: None for that of its class. board: a scoreboard, on which the name must be free. Raises ValueError for a
        file without exactly one entry and for a name that is taken, Refused for an entry that breaks a rule, and
        ContenderFailed for a baseline that does not run.
        """
        self.say(f"loading {file.path}")
        with Contender(file, self.limits) as own:
            own.wait_until_ready()
            with baselines_fault():
                self.baseline.wait_until_ready()
            row = {"name": name or own.name, "kind": own.kind}
            if board:
                require_free(board, row["name"])
            seconds, tried = self._runs(own)
            changed = own.what_it_changed()
        self._judge(tried)
        if changed:
            raise Refused(f"it changed {changed}: an entry leaves the library as it is, and derives from its classes")
        return self._result(file, row, seconds)

    def _runs(self, own: Contender) -> tuple[dict[str, list[float]], Tried]:
        """Run both in turn. Returns the seconds of both, pair by pair, and all tokens, which are judged later."""
        contenders = {BASELINE: self.baseline, "entry": own}
        seconds: dict[str, list[float]] = {who: [] for who in contenders}
        tried: Tried = []
        draw = SystemRandom()  # no seed is known before its run
        requests: list[Request] = []
        for repeat, position, who in turns(list(contenders), self.repeats, warmup=1):
            if position == 0:
                requests = self.workload.draw(draw.getrandbits(63))
                self.say(f"{own.path}: run {repeat + 1} of {self.repeats}" if repeat >= 0 else f"{own.path}: warm-up")
            with baselines_fault() if who == BASELINE else nullcontext():
                tokens, took = contenders[who].run(requests, is_first=repeat < 0)
            tried.append((who, requests, tokens))
            if repeat >= 0:
                seconds[who].append(took)
        return seconds, tried

    def _judge(self, tried: Tried) -> None:
        self.say("judging the tokens")
        for who, requests, tokens in tried:
            if mistake := mistake_in(self.model, requests, tokens):
                assert who != BASELINE, f"the baseline is wrong: {mistake}"
                raise Refused(mistake)

    def _result(self, file: EntryFile, row: dict[str, Any], seconds: dict[str, list[float]]) -> Score:
        own = score_row(row["name"], row["kind"], seconds[BASELINE], seconds["entry"])
        arguments = {
            "workload": self.workload.name,
            "requests": len(self.workload.lengths),
            "tokens": self.workload.num_tokens,
            "repeats": self.repeats,
            "file": Path(file.path).name,
            "sha256": file.sha256,
        }
        samples = [
            {"name": who, "repeat": repeat, "seconds": took}
            for who, times in seconds.items()
            for repeat, took in enumerate(times)
        ]
        here = describe_host(torch.device("cpu"))
        return Score(arguments=arguments, rows=[row | own], samples=samples, **here)


@contextmanager
def baselines_fault() -> Iterator[None]:
    """Raise ContenderFailed for a Refused in the body: what stops the baseline is no fault of an entry."""
    try:
        yield
    except Refused as error:
        raise ContenderFailed(f"the baseline failed, so no entry has a score: {error}") from error
