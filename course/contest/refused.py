"""Refused: what the contest raises for an entry that breaks a rule."""


class Refused(Exception):
    """An entry that has no score, and why, in one line."""
