"""Lesson 16, a step of the learner's own: what it forgets is found, and other ways to write it pass."""

from __future__ import annotations

from contextlib import suppress

from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers

from roseinfer.blocks import OutOfBlocks
from stages import Graphs, Overlap


class TakingTurns(Overlap):
    def step(self):
        super().step()
        return self.finish()


def stage(step):
    return type("OneBehind", (TakingTurns,), {"step": step})


def launch_next(self):
    with self.ahead(), suppress(OutOfBlocks):
        self.launch(*self.schedule())


def guarded(step):
    def with_drop(self):
        try:
            return step(self)
        except BaseException:
            self.drop()
            raise

    return stage(with_drop)


def in_turn(self):
    launch_next(self)
    return self.finish()


def finish_first(self):
    done = self.finish() if self.in_flight else []
    launch_next(self)
    return done


def two_ahead(self):
    is_full = len(self.in_flight) == 2
    launch_next(self)
    return self.finish() if is_full or not self.has_work else []


def not_drained(self):
    if len(self.in_flight) == 1 and not self.waiting and not any(len(s) + 1 < s.max_len for s in self.running):
        return []
    is_in_flight = bool(self.in_flight)
    launch_next(self)
    return self.finish() if is_in_flight else []


def nothing_returned(self):
    is_in_flight = bool(self.in_flight)
    launch_next(self)
    if is_in_flight:
        self.finish()
    return []


def none_at_first(self):
    is_in_flight = bool(self.in_flight)
    launch_next(self)
    return self.finish() if is_in_flight else None


def not_ahead(self):
    is_in_flight = bool(self.in_flight)
    with suppress(OutOfBlocks):
        self.launch(*self.schedule())
    return self.finish() if is_in_flight else []


def launched_behind(self):
    is_in_flight = bool(self.in_flight)
    plan = [], []
    with self.ahead(), suppress(OutOfBlocks):
        plan = self.schedule()
    if plan[0]:
        self.launch(*plan)
    return self.finish() if is_in_flight else []


def no_block_is_an_error(self):
    is_in_flight = bool(self.in_flight)
    with self.ahead():
        self.launch(*self.schedule())
    return self.finish() if is_in_flight else []


def nobody_launched(self):
    is_in_flight = bool(self.in_flight)
    with self.ahead():
        plan = [], []
        with suppress(OutOfBlocks):
            plan = self.schedule()
        self.launch(*plan)
    return self.finish() if is_in_flight else []


def one_behind(self):
    is_in_flight = bool(self.in_flight)
    launch_next(self)
    return self.finish() if is_in_flight else []


def error_swallowed(self):
    try:
        return one_behind(self)
    except RuntimeError:
        self.drop()
        return []


class NoSub:
    pass


@wrong_answers(
    "16.4",
    {
        "in turn": (guarded(in_turn), "is asked for before step 1 is launched"),
        "finished first": (guarded(finish_first), "is asked for before step 1 is launched"),
        "two ahead": (guarded(two_ahead), "steps are in flight between two calls"),
        "the last step is left": (guarded(not_drained), "there is still work"),
        "returns nothing": (guarded(nothing_returned), "have one token more, and step() returned 0"),
        "None at first": (guarded(none_at_first), "step() returned None"),
        "not ahead": (guarded(not_ahead), "schedule is called outside of ahead()"),
        "launched behind": (guarded(launched_behind), "launch is called outside of ahead()"),
        "no block is an error": (guarded(no_block_is_an_error), "step() raises OutOfBlocks"),
        "nobody launched": (guarded(nobody_launched), "launched with nobody in it"),
        "nothing dropped": (stage(one_behind), "they have to be dropped"),
        "an error swallowed": (stage(error_swallowed), "the caller never hears of it"),
        "another stage": (type("OneBehind", (Graphs,), {}), "expected a subclass of TakingTurns"),
        "no stage": (NoSub, "expected a subclass of a stage"),
    },
)
def test_wrong_steps(answer, message):
    assert_refused("16.4", answer, message)


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
                    plan = [], []
                if plan[0]:
                    self.launch(*plan)
                    self.at_work = True
            return self.finish() if was_at_work else []
        except BaseException:
            self.at_work = False
            self.drop()
            raise


@right_answers(
    "16.4",
    {
        "with a finally": stage(with_a_finally),
        "its own state": Waiting,
        "the stage's": type("OneBehind", (TakingTurns,), {"step": Overlap.step}),
    },
)
def test_right_steps(answer):
    assert_accepted("16.4", answer)
