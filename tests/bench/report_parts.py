"""Parts of a report for a process of their own to run: it finds them by name."""

from __future__ import annotations

import os
import sys


def fine(context):
    context.say("working")
    yield {"process": os.getpid()}
    context.note("a note")
    context.fail("a check")
    yield {"seconds": context.plan.seconds, "left": context.seconds_left()}


def raises(context):
    yield {"process": os.getpid()}
    raise IndexError("an illegal access")


def dies(context):
    yield {"process": os.getpid()}
    sys.stdout.flush()
    os._exit(7)


PARTS = {"fine": fine, "raises": raises, "dies": dies}
