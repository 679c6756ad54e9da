"""Lesson 23: a decode step on a GPU in few launches."""
