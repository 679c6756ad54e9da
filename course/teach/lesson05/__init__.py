"""Helpers and checkers of lesson 05."""
