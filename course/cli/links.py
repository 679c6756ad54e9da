"""Check every link and image of the README, docs, the teacher's kit and the lessons' prose.

Addresses on the web are looked at for their form only; with --online each is asked for its header.
"""

from __future__ import annotations

import argparse
import sys

from roseinfer.arguments import counted
from roseinfer.cli.command import FAILED
from roseinfer.paths import ROOT

EXAMPLES = ("roseinfer links", "roseinfer links --online")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--online", action="store_true", help="ask each address on the web for its header, too")


def run(args: argparse.Namespace) -> int:
    from course.pages.links import check

    links, broken = check(ROOT, args.online)
    for link, why in broken:
        print(f"{link.where.relative_to(ROOT)}: {link.target}: {why}", file=sys.stderr)
    asked = "asked" if args.online else "not asked, --online does"
    num_web = len({link.target for link in links if link.is_web})
    print(f"{counted(len(links), 'link')}, {len(broken)} broken; on the web: {num_web} ({asked})")
    return FAILED if broken else 0
