"""Helpers and checkers of lesson 03."""
