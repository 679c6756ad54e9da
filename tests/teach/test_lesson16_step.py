"""Lesson 16, a step of the learner's own: what it forgets is found, and other ways to write it pass."""

from __future__ import annotations

from contextlib import ExitStack, suppress

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


def empty_launched(self):
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


def dropping_on(kind):
    def step(self):
        try:
            return one_behind(self)
        except kind:
            self.drop()
            raise

    return stage(step)


def finish_guarded(self):
    is_in_flight = bool(self.in_flight)
    launch_next(self)
    try:
        return self.finish() if is_in_flight else []
    except BaseException:
        self.drop()
        raise


def launch_guarded(self):
    is_in_flight = bool(self.in_flight)
    try:
        launch_next(self)
    except BaseException:
        self.drop()
        raise
    return self.finish() if is_in_flight else []


def launch_swallowed(self):
    is_in_flight = bool(self.in_flight)
    with self.ahead(), suppress(Exception):
        self.launch(*self.schedule())
    return self.finish() if is_in_flight else []


def forgets(self):
    try:
        return one_behind(self)
    except BaseException:
        self.in_flight.clear()
        raise


def raises_another(self):
    try:
        return one_behind(self)
    except BaseException as error:
        self.drop()
        raise ValueError("a step failed") from error


def drops_always(self):
    done = one_behind(self)
    self.drop()
    return done


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
        "an empty step launched": (guarded(empty_launched), "a step of no sequence is launched"),
        "nothing dropped": (stage(one_behind), "drop() has to forget them"),
        "Ctrl-C lets it pass": (dropping_on(Exception), "`except Exception` lets it pass"),
        "one kind of error": (dropping_on(RuntimeError), "Ctrl-C comes while computing step 0"),
        "finish alone guarded": (stage(finish_guarded), "an error comes while launching step 2"),
        "launch alone guarded": (stage(launch_guarded), "an error comes while computing step 0"),
        "an error of launch swallowed": (guarded(launch_swallowed), "the caller of step() never hears of it"),
        "forgotten, not dropped": (stage(forgets), "step 1 may still be computed"),
        "another error": (stage(raises_another), "the caller gets ValueError, not the same error again"),
        "dropped every time": (guarded(drops_always), "there is still work"),
        "nothing": (guarded(lambda self: []), "there is still work"),
        "an error swallowed": (stage(error_swallowed), "the caller of step() never hears of it"),
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


def with_names(self):
    is_in_flight = bool(self.in_flight)
    with self.ahead(), suppress(OutOfBlocks):
        seqs, num_new = self.schedule()
        self.launch(seqs=seqs, num_new=num_new)
    return self.finish() if is_in_flight else []


def with_an_exit_stack(self):
    with ExitStack() as after:
        after.callback(self.drop)
        done = one_behind(self)
        after.pop_all()
    return done


def two_ways(self):
    if not self.in_flight:
        self.launch(*self.schedule())
        return []
    with self.ahead(), suppress(OutOfBlocks):
        self.launch(*self.schedule())
    return self.finish()


@right_answers(
    "16.4",
    {
        "arguments by name": guarded(with_names),
        "an exit stack": stage(with_an_exit_stack),
        "two ways": guarded(two_ways),
        "with a finally": stage(with_a_finally),
        "its own state": Waiting,
        "the stage's": type("OneBehind", (TakingTurns,), {"step": Overlap.step}),
    },
)
def test_right_steps(answer):
    assert_accepted("16.4", answer)
