"""Checkers of lesson 02."""
