"""Helpers and checkers of lesson 06."""
