"""Helpers and checkers of lesson 01."""
