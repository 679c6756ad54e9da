"""Lesson 22: the contest."""
