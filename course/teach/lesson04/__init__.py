"""Helpers and checkers of lesson 04."""
