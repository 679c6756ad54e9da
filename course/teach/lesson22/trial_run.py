"""mistake_of: a contest's entry, run once on a few requests in this process, which takes a moment; nothing is timed."""

from __future__ import annotations

from course.contest import EntryFile, Refused, Workload
from course.contest.entry import NoEntry, make_engine
from course.contest.entry_file import class_in
from course.contest.handed_over import HandedOver
from course.contest.judge import mistake_in
from course.contest.library import changed_since, marks_of_library
from course.contest.places import run_in_places
from course.contest.worker import described
from course.contest.workload import SPEC
from roseinfer.models import load_model

MOST_STEPS = 1000  # of a run that needs some tens


def mistake_of(file: EntryFile, workload: Workload) -> str | None:
    """Run an entry on the workload and say what is wrong about it; None if all of its tokens are right."""
    before, requests = marks_of_library(), workload.draw(seed=0)
    places = HandedOver(requests)

    def hand_over(ended: list[tuple[int, list[int]]], begun: list[int]) -> list[list[int]]:
        return places.answer({"ended": [list(one) for one in ended], "begun": begun})

    try:
        made = make_engine(class_in(file), load_model(SPEC, device="cpu"))
        lengths = [(len(request.prompt), request.max_tokens) for request in requests]
        for step, _ in enumerate(run_in_places(made, lengths, hand_over)):
            if step == MOST_STEPS:
                return f"after {MOST_STEPS:,} steps not all requests have ended"
        tokens = places.tokens_in_order()
    except NoEntry as error:
        return f"file {file.path}: {error}"
    except Refused as error:
        return str(error)
    except (Exception, SystemExit) as error:
        return f"it failed: {described(error, file)}"
    if changed := changed_since(before):
        return (
            f"it changed {changed}: an entry leaves the library as it is, and derives from its classes. Restart the "
            "kernel, where it is still changed"
        )
    return mistake_in(load_model(SPEC, device="cpu"), requests, tokens)
