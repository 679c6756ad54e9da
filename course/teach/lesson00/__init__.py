"""Helpers and checkers of lesson 00."""
