"""Lesson 18: a decode step as one compiled function."""
