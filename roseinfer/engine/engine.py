"""Engine: requests in, tokens out. The loop of one step: schedule, launch, wait, commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from roseinfer.arguments import counted
from roseinfer.models import Model
from roseinfer.profiling import span
from roseinfer.sampling_params import refuse_unresolved
from roseinfer.sequence import Logprob, Sequence
from roseinfer.stage import check_fits

from .calls import OneCaller
from .config import EngineConfig
from .feature import Feature
from .logit_changes import check_tokens
from .metrics import EngineMetrics, SequenceTimes
from .runner import Runner
from .scheduler import Scheduler
from .speculation.speculation import speculation_of
from .step import Step
from .warm_up import warm_up


class Engine:
    """Turns requests into tokens: schedules, launches and commits steps, with up to `depth` of them in flight.

    model: from load_model. make_runner: makes the runner of its steps. guard: entered by each call that changes what
    runs, None to let in one call at a time, and whole (OneCaller). settings: the fields of EngineConfig.

    With a depth of 1, a step is launched and committed, and then the next one is scheduled. While the device computes
    the host waits for it, and the other way round.
    With a depth of 2 (async_scheduling), the next step is launched before this one's tokens are read, so the device
    goes on without a pause. What the next step needs of them stays on the device, and the scheduler counts them as
    there. A sequence that stops with one of them is in the next step already: that surplus token is dropped. Freed
    blocks can be used at once: the device works in order, and a sequence that gets a freed block comes later. This is
    asynchronous scheduling as in SGLang and vLLM.

    With `speculative`, the depth is 1, and a step may give a sequence several tokens. They are the tokens that it has
    without: see speculation/verify.py.

    Raises ValueError as EngineConfig does, and for a max_model_len above the model's.
    """

    def __init__(
        self,
        model: Model,
        *,
        make_runner: Callable[..., Runner] = Runner,
        guard: Callable[[], AbstractContextManager[Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.config = model, EngineConfig(**settings)
        config, shape = self.config, model.config
        self.max_model_len = config.longest(shape)
        self.scheduler = Scheduler.of(config, self.max_model_len, shape.eos_token_ids)
        self.blocks = self.scheduler.blocks
        self.metrics = EngineMetrics(self.scheduler)
        self.speculation = speculation_of(config, model, self.scheduler, self.metrics)
        self.features: list[Feature] = [self.speculation, self.metrics] if self.speculation else [self.metrics]
        overlap = config.async_scheduling
        if overlap is None:
            overlap = model.device.type == "cuda" and self.speculation is None
        self.runner = make_runner(
            model, self.blocks, config.step_tokens, config.enforce_eager, overlap, config.step_rows
        )
        self.pool = self.runner.pool
        self.depth = 1 + overlap
        self.in_flight: deque[Step] = deque()
        self.guard = guard or OneCaller("Engine").call

    def warm_up(self) -> None:
        """Prepare what the first steps would otherwise have to make. Call it before the first request."""
        warm_up(self.runner)
        for feature in self.features:
            feature.warm_up()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, seq: Sequence, arrival: float | None = None) -> SequenceTimes:
        """Let a sequence wait for its turn, and return its timestamps, which are filled as it runs.

        arrival: when it came, by metrics.clock; None: now.

        Raises ValueError for one that could never run to its end here, or that the policy cannot place, or has ended
        already, or is here; nothing of it stays behind.
        """
        refuse_unresolved(seq.params)
        check_tokens(seq.params, self.model.config.vocab_size)
        self.check(seq)
        check_fits(seq, self.model.config.vocab_size, self.max_model_len, self.blocks)
        if seq.finish_reason or len(seq) >= seq.max_len:
            raise ValueError(f"sequence {seq.seq_id} has ended (finish_reason={seq.finish_reason!r}): make a new one")
        return self.admit(seq, arrival)

    def check(self, seq: Sequence) -> None:
        """Raise ValueError for a sequence that the policy cannot place."""
        self.scheduler.policy.check(seq.params)

    def admit(self, seq: Sequence, arrival: float | None = None) -> SequenceTimes:
        """Add a sequence like add(), for a caller that has made its checks, as LLM does for all prompts first."""
        with self.guard():
            if seq.num_cached_tokens or seq in self.scheduler:
                raise ValueError(f"sequence {seq.seq_id} was added already: make a new one")
            self.scheduler.add(seq)
            return self.metrics.begin(seq, arrival)

    def step(self) -> list[Sequence]:
        """Run one step and return the sequences that have one token more, or with drafts several.

        Sequences whose prompts are not done yet have no new token, and with async_scheduling no sequence has one after
        the first step, which is only launched.

        A sequence whose logits are not finite ends: it is among those returned, with finish_reason "error" and a
        message in `error`. On an error of the whole step nothing is appended, and the next call makes the same step
        again. Raises ValueError without work.
        """
        with self.guard():
            if not self.has_work:
                raise ValueError("step needs a sequence that waits or runs: add one first")
            try:
                # 1. Schedule and launch the next step. With a depth of 2 the one before it is in flight meanwhile.
                if step := self.launch():
                    self.in_flight.append(step)
                    if len(self.in_flight) < self.depth:
                        return []
                assert self.in_flight, (
                    f"no step can be made: {counted(self.scheduler.num_waiting, 'sequence', 'waits/wait')}, "
                    "none is in flight"
                )
                # 2. Wait for the oldest step, and let its sequences have its tokens.
                done = self.commit(self.in_flight[0])
            except BaseException:
                self.rest()
                raise
            self.in_flight.popleft()
            if not self.has_work:
                self.rest()  # all of it is surplus
            return done

    def launch(self) -> Step | None:
        """Schedule and launch the next step. None when a step in flight has to be committed first."""
        scheduled = self.metrics.clock()
        with span("roseinfer.engine.schedule"):
            step = self.scheduler.schedule()
            if step is None:
                return None
            step.scheduled = scheduled
            for feature in self.features:
                feature.before_launch(step)
        self.runner.launch(step)
        return step

    def commit(self, step: Step) -> list[Sequence]:
        """Wait for a step's tokens, and let its sequences have them."""
        tokens = self.runner.wait(step)
        step.ended = self.metrics.clock()
        with span("roseinfer.engine.commit"):
            done = self.scheduler.commit(step, tokens)
            for feature in self.features:
                feature.after_tokens(step, done)
        return done

    def rest(self) -> None:
        """Drop the steps in flight, the newest first. They are computed again, if their sequences are still there."""
        while self.in_flight:
            self.runner.drop(self.in_flight[-1])
            self.in_flight.pop()
        for feature in self.features:
            feature.after_drop()

    def prompt_logprobs(self, token_ids: list[int], num_likeliest: int) -> list[dict[int, Logprob] | None]:
        """Return what Runner.prompt_logprobs does. Call it between two steps."""
        with self.guard():
            return self.runner.prompt_logprobs(token_ids, num_likeliest)

    def abort(self, seq: Sequence) -> None:
        """End a sequence now and give its blocks back. Raises ValueError for one that has ended or was never added."""
        with self.guard():
            self.scheduler.abort(seq)
            self.metrics.end(seq)
            if not self.has_work:
                self.rest()

    def reset_prefix_cache(self) -> None:
        """Forget the cached blocks that no sequence holds."""
        with self.guard():
            self.blocks.pool.forget_idle()
