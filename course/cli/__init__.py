"""The course's own subcommands of `roseinfer`, each as roseinfer.cli.main describes it."""

from __future__ import annotations

from course.cli import contest, links, reproduce, slides, tensorboard

COMMANDS = (reproduce, contest, tensorboard, slides, links)
