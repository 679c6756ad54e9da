"""Checks of a learner's step() that launches ahead: order of events, tokens, errors, aborts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from roseinfer.arguments import counted
from roseinfer.blocks import OutOfBlocks
from roseinfer.overlap import InTurn, Launched
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.explain import explain_tokens
from ..exercises.stage_checks import drawn_model, require_stage
from ..exercises.wrong import Wrong

PROMPTS = [[7] * 3, list(range(1, 22)), [11, 12], [13], [5, 6, 7, 8, 9]]
NEW_TOKENS = 9
MOST_STEPS = 400
# The promises of a queue that a wrong step() can break and no run here tests: all requests in flight end at once.
TOUCHED = ("Nothing after the end", "Aborted anywhere")
NEEDED = ("device", "in_flight", "ahead", "launch", "finish", "drop")


class _Watched(InTurn):
    """A device that notes when a step is launched, asked for and waited for. fault: what goes wrong once."""

    def __init__(self, fault: _Fault | None = None) -> None:
        self.events: list[tuple[str, int]] = []
        self.num_launched, self.fault = 0, fault
        self.raised: BaseException | None = None

    def launch(self, work: Callable[[], Any], num_tokens: int) -> Any:
        number = self.num_launched
        self._fail("launching", number)
        self.num_launched += 1
        self.events.append(("launch", number))
        return _Noted(super().launch(partial(self._compute, work, number), num_tokens), number, self)

    def _compute(self, work: Callable[[], Any], number: int) -> Any:
        self._fail("computing", number)
        return work()

    def _fail(self, where: str, number: int) -> None:
        if self.fault and (self.fault.where, self.fault.number) == (where, number):
            fault, self.fault = self.fault, None
            self.raised = fault.kind(f"{where} step {number}")
            raise self.raised


@dataclass(slots=True)
class _Noted:
    launched: Launched[Any]
    number: int
    device: _Watched

    def wait(self) -> None:
        self.device.events.append(("wait", self.number))
        self.launched.wait()

    def result(self) -> Any:
        self.device.events.append(("ask", self.number))
        self.device._fail("waiting for", self.number)
        return self.launched.result()


class _Error(RuntimeError):
    """An error such as a device out of memory."""


class _NotFinite(ValueError):
    """An error such as finish raises for logits of NaN."""


class _CtrlC(KeyboardInterrupt):
    """A KeyboardInterrupt, which is no Exception, so `except Exception` does not catch it."""


class _Other(BaseException):
    """An error that is neither an Exception nor a KeyboardInterrupt, so no list of the usual kinds catches it."""


_KINDS = {
    _Error: "an error comes",
    _NotFinite: "a ValueError comes",
    _CtrlC: "Ctrl-C comes",
    _Other: "a BaseException of another kind comes",
}
# What a list of kinds in the answer lets pass, told where a step is still in flight after such an error.
_UNCAUGHT = {
    _CtrlC: ". Ctrl-C is a KeyboardInterrupt: `except Exception` lets it pass",
    _Other: ". It is neither an Exception nor a KeyboardInterrupt: `except BaseException` catches every error",
}


@dataclass(frozen=True, slots=True)
class _Fault:
    """An error that comes once. where: planning, launching, computing or waiting for a step. number: that step's."""

    where: str
    number: int
    kind: type[BaseException]

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} while {self.where} step {self.number}"


FAULTS = [
    _Fault(where, number, kind)
    for kind in (_Error, _CtrlC)
    for where, numbers in {"computing": (0, 1, 3), "waiting for": (1,), "launching": (0, 2), "planning": (2,)}.items()
    for number in numbers
]
FAULTS += [_Fault("waiting for", 1, kind) for kind in (_NotFinite, _Other)]


def require_one_ahead(answer: type[Stage]) -> None:
    """Raise Wrong unless the stage launches one step ahead, and gives the reference's tokens whatever comes."""
    require_stage(answer)
    if missing := [name for name in NEEDED if name not in dir(answer(drawn_model(), num_blocks=4))]:
        raise Wrong(f"expected a subclass of TakingTurns: {answer.__name__} has no {', '.join(missing)}")
    _judge_order(answer)
    for title, settings in RUNS.items():
        _judge_tokens(answer, title, **settings)
    _judge_two(answer)
    for fault in FAULTS:
        _judge_error(answer, fault)
    _judge_no_block(answer)
    require_contract(_refusing_idle_steps(answer), TOUCHED)


RUNS: dict[str, dict[str, Any]] = {
    "five requests of mixed lengths": {},
    "a stop token": {"stop_at": 2},
    "prompts in chunks": {"max_num_batched_tokens": 5},
    "a pool that is too small for all": {"num_blocks": 9},
}


@lru_cache(maxsize=1)
def _whole() -> list[list[int]]:
    return reference_generate(drawn_model(), PROMPTS, NEW_TOKENS)


def _judge_order(answer: type[Stage]) -> None:
    """Raise Wrong for a step that is asked for before the next one is launched. One stage runs all requests twice."""
    for title, num_tokens, sizes, done in ORDERS:
        device = _Watched()
        stage, _ = _begun(answer, [], 0, device=device, **sizes)
        for when in ("", ", added when all before them have ended"):
            seqs = [_request(prompt, n) for prompt, n in zip(PROMPTS, num_tokens, strict=False)]
            for seq in seqs:
                stage.add(seq)
            _judge_launches(stage, seqs, device, title + when, done)


def _request(prompt: list[int], max_tokens: int, stops: tuple[int, ...] = ()) -> Sequence:
    return Sequence(list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stops))


# How many tokens each request gets, and how many sequences each call of step() returns.
ORDERS: list[tuple[str, tuple[int, ...], dict[str, Any], list[int]]] = [
    ("two requests with 4 tokens each", (4, 4), {}, [0, 2, 2, 2, 2]),
    ("three requests, two at a time", (3, 6, 5), {"max_num_seqs": 2}, [0, 2, 2, 2, 1, 2, 2, 1, 1, 1]),
]


def _judge_launches(stage: Any, seqs: list[Sequence], device: _Watched, where: str, expected: list[int]) -> None:
    device.events.clear()
    done = _to_the_end(stage, seqs, where)
    events = device.events
    launched = [number for kind, number in events if kind == "launch"]
    for number in launched[1:]:
        if ("ask", number - 1) in events and events.index(("ask", number - 1)) < events.index(("launch", number)):
            raise Wrong(
                f"{where}: step {number - 1} is asked for before step {number} is launched, so the device is idle in "
                "between, as when host and device take turns"
            )
    if len(launched) != len(expected) - 1:
        raise Wrong(f"{where}: you launch {len(launched)} steps, expected {len(expected) - 1}")
    if done != expected:
        raise Wrong(
            f"{where}: step() returned {done} sequences, call by call, expected {expected} with one step in flight"
        )


def _begun(
    answer: Any,
    prompts: list[list[int]],
    max_tokens: int,
    *,
    device: Any = None,
    stops: tuple[int, ...] = (),
    **sizes: Any,
) -> tuple[Any, list[Sequence]]:
    sizes = {"num_blocks": 40, "block_size": 4, "max_num_seqs": 4} | sizes
    device = device or _Watched()
    stage: Any = answer(drawn_model(), device=device, **sizes)
    seqs = [_request(prompt, max_tokens, stops) for prompt in prompts]
    for seq in seqs:
        stage.add(seq)
    _watch_ahead(stage, device)
    return stage, seqs


def _watch_ahead(stage: Any, device: _Watched) -> None:
    """Raise Wrong for planning or launching as if nothing were in flight, which computes the same tokens again."""
    inside: list[bool] = []
    ahead = stage.ahead

    @contextmanager
    def watched_ahead() -> Iterator[None]:
        with ahead():
            inside.append(True)
            try:
                yield
            finally:
                inside.pop()

    def only_inside(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if stage.in_flight and not inside:
                raise Wrong(
                    f"{name} is called outside of ahead() while a step is in flight: its tokens look not computed yet"
                )
            return method(*args, **kwargs)

        return watched

    def failing_schedule() -> Any:
        device._fail("planning", device.num_launched)
        return schedule()

    def launch_of_some(seqs: list[Sequence], num_new: list[int]) -> None:
        if not seqs:
            raise Wrong("a step without sequences is launched: when schedule() raises, there is nothing to launch")
        launch(seqs, num_new)

    schedule, launch = stage.schedule, stage.launch
    stage.ahead = watched_ahead
    stage.schedule, stage.launch = only_inside("schedule", failing_schedule), only_inside("launch", launch_of_some)


def _to_the_end(stage: Any, seqs: list[Sequence], where: str) -> list[int]:
    """Step until there is no work, and return how many sequences each call of step() returned."""
    returned: list[int] = []
    while stage.has_work:
        returned.append(_one_step(stage, seqs, where))
        if len(returned) == MOST_STEPS:
            raise Wrong(f"{where}: after {MOST_STEPS} calls of step() there is still work: {_state(stage)}")
    if stage.num_free_blocks != stage.tables.num_blocks:
        raise Wrong(f"{where}: at the end {stage.num_free_blocks} of {stage.tables.num_blocks} blocks are free")
    return returned


def _state(stage: Any) -> str:
    return f"{len(stage.waiting)} queued, {len(stage.running)} running, {len(stage.in_flight)} steps in flight"


def _one_step(stage: Any, seqs: list[Sequence], where: str) -> int:
    before = [len(seq) for seq in seqs]
    try:
        done = stage.step()
    except OutOfBlocks as error:
        raise Wrong(f"{where}: step() raises OutOfBlocks. Finish the step in flight first") from error
    if not isinstance(done, list):
        raise Wrong(f"{where}: step() returned {done!r}, expected a list of sequences, empty for none")
    if len(stage.in_flight) > 1:
        raise Wrong(
            f"{where}: {counted(len(stage.in_flight), 'step', 'is/are')} in flight between two calls of step(), "
            "but the host has two "
            "buffers: the next step would overwrite one that is being read"
        )
    grown = [seq for seq, n in zip(seqs, before, strict=True) if len(seq) > n]
    if {id(seq) for seq in done} != {id(seq) for seq in grown}:
        raise Wrong(
            f"{where}: step() returned {len(done)} sequences, expected the {len(grown)} that have one token more"
        )
    return len(done)


def _judge_tokens(answer: type[Stage], where: str, stop_at: int | None = None, **sizes: Any) -> None:
    stops = () if stop_at is None else (_whole()[0][stop_at],)
    stage, seqs = _begun(answer, PROMPTS, NEW_TOKENS, stops=stops, **sizes)
    _to_the_end(stage, seqs, where)
    _require_tokens(seqs, stops, where)


def _judge_two(answer: type[Stage]) -> None:
    """Judge two stages whose steps come in turns, for as long as the one has work, and then the other alone."""
    where = "two stages of the class, a step of each in turn"
    one, of_one = _begun(answer, PROMPTS, NEW_TOKENS)
    other, of_other = _begun(answer, PROMPTS, NEW_TOKENS, num_blocks=9)
    while one.has_work:
        _one_step(one, of_one, where)
        _one_step(other, of_other, where)
    _to_the_end(other, of_other, where)
    for seqs in (of_one, of_other):
        _require_tokens(seqs, (), where)


def _require_tokens(seqs: list[Sequence], stops: tuple[int, ...], where: str) -> None:
    for i, (seq, whole) in enumerate(zip(seqs, _whole(), strict=True)):
        end = next((place + 1 for place, token in enumerate(whole) if token in stops), len(whole))
        if message := explain_tokens(seq.output_ids, whole[:end]):
            raise Wrong(f"{where}, request {i}: {message}")


def _judge_error(answer: type[Stage], fault: _Fault) -> None:
    device = _Watched(fault)
    stage, seqs = _begun(answer, PROMPTS, NEW_TOKENS, device=device)
    num_raised = num_steps = 0
    while stage.has_work:
        try:
            _one_step(stage, seqs, str(fault))
        except tuple(_KINDS) as error:
            if error is not device.raised:
                raise Wrong(
                    f"{fault}: the caller gets a new {type(error).__name__}, not the same error again: a plain `raise` "
                    "passes on the error itself"
                ) from error
            num_raised += 1
            _require_dropped(stage, device, fault)
            _require_order(stage, seqs, fault)
        except Wrong:
            raise
        except Exception as error:
            got = type(error).__name__
            raise Wrong(f"{fault}: the caller gets {got}, not the same error again: {error}") from error
        num_steps += 1
        if num_raised > 1 or num_steps == MOST_STEPS:
            raise Wrong(f"{fault}: it happens once, and step() does not go on after it: {_state(stage)}")
    if not num_raised:
        raise Wrong(f"{fault}: the caller of step() does not get the error")
    _require_tokens(seqs, (), f"{fault}, and the steps go on")


def _require_dropped(stage: Any, device: _Watched, fault: _Fault) -> None:
    if stage.in_flight:
        uncaught = _UNCAUGHT.get(fault.kind, "")
        raise Wrong(
            f"{fault}: after it {counted(len(stage.in_flight), 'step', 'is/are')} in flight: "
            f"call drop(), which discards them{uncaught}"
        )
    over = {number for kind, number in device.events if kind != "launch"}
    if running := [number for kind, number in device.events if kind == "launch" and number not in over]:
        raise Wrong(
            f"{fault}: after it no step is in flight, but step {running[0]} may still be computing and writing to the "
            "pool: drop() waits for the device"
        )


def _require_order(stage: Any, seqs: list[Sequence], fault: _Fault) -> None:
    places = [seqs.index(seq) for seq in (*stage.running, *stage.waiting)]
    if places != sorted(places):
        raise Wrong(f"{fault}: after it the requests are queued in the order {places}: none may overtake another")


def _judge_no_block(answer: type[Stage]) -> None:
    """Judge a step while a sequence outside the queue holds the blocks, so that no step in flight frees one."""
    where = "no step is in flight, and schedule() raises OutOfBlocks"
    stage, seqs = _begun(answer, PROMPTS, NEW_TOKENS, num_blocks=9)
    outside = _request([3] * 35, 1)
    stage.prefill(outside)
    try:
        returned = stage.step()
    except OutOfBlocks:
        stage.free(outside)
    else:
        raise Wrong(
            f"{where}: step() returned {returned!r}, so the caller calls it again, without end. Expected OutOfBlocks"
        )
    _to_the_end(stage, seqs, f"{where}; a block is free after that")
    _require_tokens(seqs, (), f"{where}; a block is free after that")


def _refusing_idle_steps(answer: Any) -> type[Stage]:
    """Add the check that the contract of a queue asks for and the exercise does not: a step needs work."""

    def step(self: Any) -> list[Sequence]:
        if not self.has_work:
            raise ValueError("step needs a sequence that waits or runs: add one first")
        return answer.step(self)

    return type(answer.__name__, (answer,), {"step": step, "__module__": answer.__module__})
