"""Helpers and checkers of lesson 09."""
