"""Promises of a stage with a queue, and the search for the shortest schedule that breaks it."""
