"""Helpers and checkers of lesson 11."""
