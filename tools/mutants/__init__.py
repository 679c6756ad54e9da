"""Mutants of the exercises' solutions, and the checkers that have to refuse them."""
