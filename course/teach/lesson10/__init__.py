"""Helpers and checkers of lesson 10."""
