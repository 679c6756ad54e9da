"""Lesson 16, a step of the learner's own: what it forgets is found, and other ways to write it pass."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress

import pytest
from wrong_answers import right_answers, wrong_answers

from roseinfer.blocks import OutOfBlocks
from stages import Graphs, Overlap

pytestmark = pytest.mark.slow


class TakingTurns(Overlap):
    def step(self):
        super().step()
        return self.finish()


def stage(step):
    return type("OneAhead", (TakingTurns,), {"step": step})


def launch_next(self):
    with self.ahead(), suppress(OutOfBlocks) if self.in_flight else nullcontext():
        self.launch(*self.schedule())


def launch_suppressing(*errors):
    def launch(self):
        with self.ahead(), suppress(*errors):
            self.launch(*self.schedule())

    return launch


def ahead_by_one(launch=launch_next, is_in_flight=lambda self: bool(self.in_flight), at_first=list):
    """A step(): it launches, and finishes the step that was in flight before. at_first: makes what it returns else."""

    def step(self):
        was_in_flight = is_in_flight(self)
        launch(self)
        return self.finish() if was_in_flight else at_first()

    return step


one_ahead = ahead_by_one()


def handling(handle, kind=BaseException, step=one_ahead):
    """handle(stage, error) in an except clause for that kind of error."""

    def handled(self):
        try:
            return step(self)
        except kind as error:
            return handle(self, error)

    return stage(handled)


def drop_and_raise(self, error):
    self.drop()
    raise error


def forget(self, error):
    self.in_flight.clear()
    raise error


def turn_the_queue(self, error):
    self.drop()
    self.waiting.reverse()
    raise error


def raise_another(self, error):
    self.drop()
    raise ValueError("a step failed") from error


def raise_a_copy(self, error):
    self.drop()
    raise type(error)("step failed") from error


def swallowing(kind):
    def handle(self, error):
        self.drop()
        if not isinstance(error, kind):
            raise error
        return []

    return handling(handle)


def guarded(step):
    return handling(drop_and_raise, step=step)


def in_turn(self):
    launch_next(self)
    return self.finish()


def finish_first(self):
    done = self.finish() if self.in_flight else []
    launch_suppressing(OutOfBlocks)(self)
    return done


def two_ahead(self):
    is_full = len(self.in_flight) == 2
    launch_next(self)
    return self.finish() if is_full or not self.has_work else []


def not_drained(self):
    if len(self.in_flight) == 1 and not self.waiting and not any(len(s) + 1 < s.max_len for s in self.running):
        return []
    return one_ahead(self)


def nothing_returned(self):
    one_ahead(self)
    return []


def launch_outside(self):
    with suppress(OutOfBlocks):
        self.launch(*self.schedule())


def planned_ahead(self):
    plan = [], []
    with self.ahead(), suppress(OutOfBlocks):
        plan = self.schedule()
    return plan


def launch_outside_ahead(self):
    plan = planned_ahead(self)
    if plan[0]:
        self.launch(*plan)


def launch_empty(self):
    plan = planned_ahead(self)
    with self.ahead():
        self.launch(*plan)


def launch_when_none_waits(self):
    if not (self.in_flight and self.waiting):
        launch_next(self)


def finish_guarded(self):
    is_in_flight = bool(self.in_flight)
    launch_next(self)
    try:
        return self.finish() if is_in_flight else []
    except BaseException:
        self.drop()
        raise


def launch_guarded(self):
    try:
        launch_next(self)
    except BaseException:
        self.drop()
        raise


def has_some_running(self):
    """A step in flight of which all have ended is never finished."""
    return bool(self.in_flight and self.running)


def has_some_not_aborted(self):
    """A step of which all have been aborted is left in flight."""
    return any(seq.finish_reason != "abort" for step in self.in_flight for seq in step.seqs)


def as_it_was_left(self):
    """What runs after a step is thought to be in flight; all that was may have ended by then."""
    was_at_work = vars(self).get("at_work", False)
    launch_next(self)
    done = self.finish() if was_at_work else []
    self.at_work = bool(self.running)
    return done


def has_begun(self):
    """Nothing is in flight in the first call of all, and again when the queue was empty."""
    begun, self.begun = vars(self).get("begun", False), True
    return begun


test_wrong_steps = wrong_answers(
    "16.4",
    {
        "in turn": (guarded(in_turn), "is asked for before step 1 is launched"),
        "finished first": (guarded(finish_first), "is asked for before step 1 is launched"),
        "two ahead": (guarded(two_ahead), "steps are in flight between two calls"),
        "the last step is left": (guarded(not_drained), "there is still work"),
        "returns nothing": (guarded(nothing_returned), "step() returned 0 sequences, expected the"),
        "None at first": (guarded(ahead_by_one(at_first=lambda: None)), "step() returned None"),
        "not ahead": (guarded(ahead_by_one(launch_outside)), "schedule is called outside of ahead()"),
        "launched outside of ahead": (
            guarded(ahead_by_one(launch_outside_ahead)),
            "launch is called outside of ahead()",
        ),
        "no block is an error": (guarded(ahead_by_one(launch_suppressing())), "step() raises OutOfBlocks"),
        "an empty step launched": (guarded(ahead_by_one(launch_empty)), "a step without sequences is launched"),
        "nothing dropped": (stage(one_ahead), "call drop(), which discards them"),
        "Ctrl-C lets it pass": (handling(drop_and_raise, Exception), "`except Exception` lets it pass"),
        "finish alone guarded": (stage(finish_guarded), "an error comes while launching step 2"),
        "launch alone guarded": (stage(ahead_by_one(launch_guarded)), "an error comes while computing step 0"),
        "an error of launch swallowed": (
            guarded(ahead_by_one(launch_suppressing(Exception))),
            "the caller of step() does not get the error",
        ),
        "forgotten, not dropped": (handling(forget), "step 1 may still be computing"),
        "the queue turned": (handling(turn_the_queue), "after it the requests are queued in the order [4, 3, 2, 1, 0]"),
        "another error": (handling(raise_another), "the caller gets ValueError, not the same error again"),
        "a new error of the same kind": (
            handling(raise_a_copy),
            "an error comes while computing step 0: the caller gets a new _Error, not the same error again",
        ),
        "nothing": (guarded(lambda self: []), "there is still work"),
        "an error swallowed": (swallowing(RuntimeError), "the caller of step() does not get the error"),
        "a ValueError swallowed": (
            swallowing(ValueError),
            "a ValueError comes while waiting for step 1: the",
        ),
        "no block is never an error": (
            guarded(ahead_by_one(launch_suppressing(OutOfBlocks))),
            "no step is in flight, and schedule() raises",
        ),
        "in flight while some run": (
            guarded(ahead_by_one(is_in_flight=has_some_running)),
            "the promise **Nothing after the end**",
        ),
        "in flight as it was left": (guarded(as_it_was_left), "the promise **Nothing after the end**"),
        "aborted ones left in flight": (
            guarded(ahead_by_one(is_in_flight=has_some_not_aborted)),
            "the promise **Aborted anywhere**",
        ),
        "not ahead of those that wait": (
            guarded(ahead_by_one(launch_when_none_waits)),
            "two at a time: step 0 is asked for before",
        ),
        "ahead from the first call on": (
            guarded(ahead_by_one(is_in_flight=has_begun)),
            "all before them have ended: step 4 is asked",
        ),
        "two kinds of errors": (
            handling(drop_and_raise, (RuntimeError, KeyboardInterrupt)),
            "a ValueError comes while waiting for",
        ),
        "three kinds of errors": (
            handling(drop_and_raise, (RuntimeError, ValueError, KeyboardInterrupt)),
            "a BaseException of another kind comes while waiting for step 1: after it 2 steps are in flight: "
            "call drop(), which discards them. It is neither an Exception nor a KeyboardInterrupt",
        ),
        "another stage": (type("OneAhead", (Graphs,), {}), "expected a subclass of TakingTurns"),
        "no stage": (dict, "expected a subclass of a stage"),
    },
)


def with_a_finally(self):
    before, is_over = len(self.in_flight), False
    try:
        launch_next(self)
        done = self.finish() if before else []
        is_over = True
        return done
    finally:
        if not is_over:
            self.drop()


class Waiting(TakingTurns):
    """Keeps by itself whether the device is at work."""

    at_work = False

    def step(self):
        try:
            was_at_work, self.at_work = self.at_work, False
            with self.ahead():
                try:
                    plan = self.schedule()
                except OutOfBlocks:
                    if not was_at_work:
                        raise
                    plan = [], []
                if plan[0]:
                    self.launch(*plan)
                    self.at_work = True
            return self.finish() if was_at_work else []
        except BaseException:
            self.at_work = False
            self.drop()
            raise


def launch_by_name(self):
    with self.ahead(), suppress(OutOfBlocks) if self.in_flight else nullcontext():
        seqs, num_new = self.schedule()
        self.launch(seqs=seqs, num_new=num_new)


def with_an_exit_stack(self):
    with ExitStack() as after:
        after.callback(self.drop)
        done = one_ahead(self)
        after.pop_all()
    return done


def two_ways(self):
    if not self.in_flight:
        self.launch(*self.schedule())
        return []
    launch_suppressing(OutOfBlocks)(self)
    return self.finish()


test_right_steps = right_answers(
    "16.4",
    {
        "arguments by name": guarded(ahead_by_one(launch_by_name)),
        "an exit stack": stage(with_an_exit_stack),
        "two ways": guarded(two_ways),
        "with a finally": stage(with_a_finally),
        "its own state": Waiting,
        "the stage's": type("OneAhead", (TakingTurns,), {"step": Overlap.step}),
    },
)
